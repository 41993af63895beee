"""Which pairs of operations were covered so far? A list in Markdown, to which runs add theirs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from tests.model.checker.operation import OPERATIONS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.model.checker.model import CheckerTable

Pairs: TypeAlias = set[tuple[str, str]]

_CREATIONS: Final = ("create", "create_log", "create_partitioned", "create_untracked", "bootstrap")

_APART: Final = (("set_ttl", "replay_from_offsets"),)
"""Pairs that cannot meet, although kinds of tables have both."""

_HEAD: Final = """# Pairs of operations

Two effects of operations are covered if both happened to one table, in this order. A creation also counts as
happening to the table that had its name before, and what happens to it then follows a drop.

Of {all} pairs, {covered} are covered, {impossible} cannot meet, because no kind of table that the checker draws has
both, or because the rows of a reader that replays changes are not certain after `set_ttl`: those that another time to
live brings back have no change. {open} are open.
`python -m tests.model.checker --pairs FILE` adds the pairs of a run, which prefers what is open.

| first | on tables of the kinds | covered | cannot meet | open after it |
|---|---|---|---|---|
"""


@dataclass(slots=True)
class Coverage:
    """What the operations of a run had effects on.

    Attributes:
        pairs: The pairs of effects on one table, in their order, those of earlier runs included.
        kinds: The kinds of tables that had each effect.
        effects: The effects on each table, by its number.
    """

    pairs: Pairs = field(default_factory=set)
    kinds: dict[str, set[str]] = field(default_factory=dict)
    effects: dict[int, set[str]] = field(default_factory=dict)
    _newest: dict[str, int] = field(default_factory=dict)

    def add(self, effect: str, table: CheckerTable) -> None:
        """Adds an effect on a table."""
        assert effect in all_effects(), f"no operation has the effect {effect}"
        before = self.effects.get(table.number)
        if before is None:  # it was created
            before = self.effects.get(self._newest.get(table.name, 0), set())
            self.effects[table.number], self._newest[table.name] = before & {"drop"}, table.number
        self.pairs |= {(each, effect) for each in before}
        self.effects[table.number].add(effect)
        self.kinds.setdefault(effect, set()).add(_kind(table))

    def gain(self, effects: tuple[str, ...], table: str | None = None) -> int:
        """Returns how many pairs effects could add now, if they happened to a table, by name, or to every one."""
        if "drop" in effects:  # which they need
            effects = (*effects, *_CREATIONS)
        numbers = self._newest.values() if table is None else filter(None, [self._newest.get(table)])
        before = set[str]().union(*(self.effects[number] for number in numbers))
        return sum((first, effect) not in self.pairs for first in before for effect in effects)

    def renumber(self, before: int, table: CheckerTable) -> None:
        """Gives a table a new number."""
        self.effects[table.number] = set(self.effects[before])
        self._newest[table.name] = table.number


def _kind(table: CheckerTable) -> str:
    name = table.name.removeprefix("checker.")
    return f"{name} {table.engine}" if len(name) > 1 and name != table.engine else table.engine


def all_effects() -> list[str]:
    """Returns the effects that the fast operations can have, sorted."""
    return sorted(
        effect for operation in OPERATIONS.values() if operation.profile == "fast" for effect in operation.effects
    )


def coverage_of(file: Path) -> Coverage:
    """Returns what earlier runs have covered by a list, or nothing if it does not exist."""
    pairs, kinds = read_pairs(file.read_text()) if file.exists() else (set[tuple[str, str]](), {})
    return Coverage(pairs, kinds)


def write_pairs(file: Path, coverage: Coverage) -> None:
    """Writes the list of what was covered."""
    # What an effect was called before is forgotten.
    names = all_effects()
    pairs = coverage.pairs & {(a, b) for a in names for b in names}
    on = {name: coverage.kinds.get(name, set()) for name in names}
    rows, impossible = [], 0
    for first in names:
        missing = [name for name in names if (first, name) not in pairs]
        apart = [
            name for name in missing if (first, name) in _APART or (on[first] and on[name] and not on[first] & on[name])
        ]
        impossible += len(apart)
        left = [name for name in missing if name not in apart]
        rows.append(_row(first, sorted(on[first]), str(len(names) - len(missing)), apart, left))
    count = len(names) ** 2
    head = _HEAD.format(all=count, covered=len(pairs), impossible=impossible, open=count - len(pairs) - impossible)
    file.write_text(head + "".join(rows))


def _row(*cells: str | list[str]) -> str:
    return f"| {' | '.join(cell if isinstance(cell, str) else ', '.join(cell) for cell in cells)} |\n"


def read_pairs(text: str) -> tuple[Pairs, dict[str, set[str]]]:
    """Returns the covered pairs of a list, and the kinds of tables."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ][1:]
    missing = {first: {*apart.split(", "), *left.split(", ")} for first, _, _, apart, left in rows}
    kinds = {first: {*on.split(", ")} - {""} for first, on, _, _, _ in rows}
    return {(first, name) for first, names in missing.items() for name in missing if name not in names}, kinds
