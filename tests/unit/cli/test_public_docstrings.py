"""Every public name has a docstring, because `help()` and the generated reference use them."""

from __future__ import annotations

import dataclasses
import inspect
import re
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

import pytest

import scankv
import scankv.mirror
import scankv.spark
import scankv.sync
import scankv.testing

if TYPE_CHECKING:
    from collections.abc import Iterator

PUBLIC = [scankv, scankv.sync, scankv.mirror, scankv.spark, scankv.testing]
OURS = ("scankv", "aio_client", "spark_bridge", "streaming_server")


def classes(module: ModuleType) -> Iterator[type]:
    return (member for member in members(module) if isinstance(member, type))


def members(module: ModuleType) -> Iterator[object]:
    return (getattr(module, name) for name in module.__all__)


def undocumented(owner: type) -> Iterator[str]:
    """Returns the public methods and properties of a class without a docstring, including those of our base classes."""
    for base in owner.__mro__:
        if base.__module__.split(".")[0] not in OURS:
            continue
        for name, member in vars(base).items():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if (
                not name.startswith("_")
                and isinstance(function, FunctionType)
                and not inspect.getdoc(getattr(owner, name))
            ):
                yield f"{owner.__name__}.{name}"


def docs_of(owner: type) -> Iterator[str]:
    return (vars(base).get("__doc__") or "" for base in owner.__mro__ if base.__module__.split(".")[0] in OURS)


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_module_class_and_function_has_a_docstring(module: ModuleType) -> None:
    named = [each for each in members(module) if isinstance(each, type | FunctionType | ModuleType)]
    # A class would inherit the docstring of its base.
    docs = {each.__name__: vars(each).get("__doc__") if isinstance(each, type) else each.__doc__ for each in named}
    assert module.__doc__
    assert [name for name, doc in docs.items() if not doc] == []


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_method_and_property_has_a_docstring(module: ModuleType) -> None:
    assert [name for owner in classes(module) for name in undocumented(owner)] == []


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_field_is_described_where_its_class_is(module: ModuleType) -> None:
    missing = [
        f"{owner.__name__}.{field.name}"
        for owner in classes(module)
        if dataclasses.is_dataclass(owner)
        for field in dataclasses.fields(owner)
        if not field.name.startswith("_") and not re.search(rf"\b{field.name}\b", "".join(docs_of(owner)))
    ]
    assert missing == []
