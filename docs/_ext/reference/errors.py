"""Describes the errors, in the order of the tree in `scankv.model.errors`."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

from scankv.model import errors

from .sentences import first_sentence
from .summary_tables import summary_table

if TYPE_CHECKING:
    from collections.abc import Iterator

ADVICE = re.compile(r"^What to do:\n((?: {4}.*\n?)+)", re.MULTILINE)


def describe_errors() -> str:
    """Returns a table of all classes, and a section for each: its reason and status, what it means, what to do."""
    classes = list(_iterate(errors.ScanKvError))
    rows = [(_link([cls.__name__]), first_sentence(inspect.getdoc(cls) or "")) for cls in classes]
    return "\n".join([summary_table("error | what has happened", rows), *map(_describe, classes)])


def _iterate(cls: type[errors.ScanKvError]) -> Iterator[type[errors.ScanKvError]]:
    yield cls
    for sub in cls.__subclasses__():
        yield from _iterate(sub)


def _describe(cls: type[errors.ScanKvError]) -> str:
    docstring = inspect.cleandoc(cls.__doc__ or "")
    advice = ADVICE.search(docstring)
    meaning = ADVICE.sub("", docstring)
    parents = [base.__name__ for base in cls.__mro__[1:] if issubclass(base, errors.ScanKvError)]
    lines = [f"## `{cls.__name__}`\n"]
    if "reason" in vars(cls) and cls is not errors.ScanKvError:
        lines.append(f"Reason `{cls.reason}`, gRPC status `{cls.code}`. Kind of {_link(parents)}.\n")
    elif parents:
        lines.append(f"Kind of {_link(parents)}.\n")
    lines.append(_format(meaning))
    if advice:
        lines.append(f"**What to do:** {' '.join(advice[1].split())}\n")
    return "\n".join(lines)


def _link(parents: list[str]) -> str:
    return f"[`{parents[0]}`](#{parents[0].lower()})"


def _format(meaning: str) -> str:
    """Returns the docstring as Markdown, with its attributes as a list."""
    text, _, attributes = meaning.partition("Attributes:\n")
    items = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", attributes, re.MULTILINE)
    listed = "".join(f"- `{name}`: {' '.join(what.split())}\n" for name, what in items)
    return f"{text.strip()}\n\n{listed}"
