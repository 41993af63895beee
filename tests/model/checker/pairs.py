"""Which pairs of operations were covered so far? A list in Markdown, to which runs add theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from tests.model.checker.operation import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Pairs: TypeAlias = set[tuple[str, str]]

_HEAD: Final = """# Pairs of operations

Of {all} pairs, {covered} were covered: both operations took effect on one table, in this order.
`python -m tests.model.checker --pairs FILE` adds the pairs of a run.

| first | covered | not covered after it |
|---|---|---|
"""


def add_pairs(file: Path, covered: Iterable[tuple[str, str]]) -> None:
    """Adds covered pairs to a list, which is created if it does not exist."""
    # What another operation was called is forgotten.
    names = sorted(name for name, operation in OPERATIONS.items() if operation.profile == "fast")
    pairs = {*covered, *(read_pairs(file.read_text()) if file.exists() else ())} & {
        (a, b) for a in names for b in names
    }
    lines = [_HEAD.format(all=len(names) ** 2, covered=len(pairs))]
    for first in names:
        after = [name for name in names if (first, name) not in pairs]
        lines.append(f"| {first} | {len(names) - len(after)} | {', '.join(after)} |\n")
    file.write_text("".join(lines))


def read_pairs(text: str) -> Pairs:
    """Returns the covered pairs of a list."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")][1:]
    missing = {first.strip(): {name.strip() for name in names.split(",")} for first, _, names in rows}
    return {(first, name) for first, names in missing.items() for name in missing if name not in names}
