"""The reference has every public name, and says of every error what to do."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from scankv.model import errors

PAGES = Path(__file__).parents[2] / "docs" / "reference" / "python"
LISTED = re.compile(r"<!-- generated: python (\S+)\s(.*?)-->", re.DOTALL)


@pytest.mark.parametrize("module", ["scankv", "scankv.sync", "scankv.mirror", "scankv.spark", "scankv.testing"])
def test_every_public_name_is_on_one_page(module: str) -> None:
    pages = [LISTED.findall(page.read_text()) for page in sorted(PAGES.glob("*.md"))]
    listed = [name for page in pages for of, names in page for name in names.split() if of == module]
    public = import_module(module)
    # Exceptions have a page of their own, generated from the tree.
    expected = {
        name for name in public.__all__ if name != "sync" and getattr(errors, name, None) is not getattr(public, name)
    }
    assert sorted(listed) == sorted(expected)


def _subclasses(cls: type[errors.ScanKvError]) -> list[type[errors.ScanKvError]]:
    return [each for sub in cls.__subclasses__() for each in (sub, *_subclasses(sub))]


def test_every_error_says_what_to_do() -> None:
    families = {errors.ServerRefused, errors.ConnectionFailed}
    silent = [
        cls.__name__
        for cls in _subclasses(errors.ScanKvError)
        if cls.__module__ in {"scankv", errors.__name__}
        and cls not in families
        and "\n    What to do:\n        " not in (cls.__doc__ or "")
    ]
    assert silent == []
