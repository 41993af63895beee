"""What must a server answer? Tables as dictionaries, and for each key the list of its changes.

Plain Python, which shares nothing with the product: a fault in a shared function would be on both sides.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tests.model.checker.folding import FOLDS
from tests.model.checker.model_rows import (
    KEY,
    PART,
    Change,
    CheckerColumn,
    ModelView,
    Shown,
    Values,
    exact,
    key_values,
    order_of,
    part_of,
    show,
)
from tests.model.checker.operation import CLOCK_START

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = [
    "KEY",
    "PART",
    "Change",
    "CheckerColumn",
    "CheckerTable",
    "ModelView",
    "Position",
    "Shown",
    "Values",
    "exact",
    "key_values",
    "order_of",
    "part_of",
    "show",
]

Position: TypeAlias = dict[int, tuple[int, int]]
"""How many changes of each key come before a position, at least and at most. A missing key has none."""

_NO_CHANGES: Final = (0, 0)

_MARKS: Final = -1
"""In a position, the key that stands for the ranges that were written without a change for each row."""

_PARTLY: Final = -2
"""In a position, the key that stands for the writes of which the changelog lacks the rows before."""


_FOLDING: Final = ("sum", "aggregate", "partial_update")
"""The engines that make a row of the one before and the written one, column by column."""


@dataclass
class CheckerTable:
    """One table, from its creation until it is dropped.

    Attributes:
        name: Its name.
        number: Tells it from every other table that ever had the name.
        columns: The columns outside the key, in order.
        rows: The rows by key.
        changes: The changes of each key in their order: the symbol of the row kind, and the values.
        indexes: The numbers of the columns of each index.
        engine: How rows with one key are merged: a merge engine, or "sum", which adds up every column, or "sequenced",
            which is `last_row` with a sequence column. "log": the table has no key, and all rows have different ones.
        options: How it was created.
        key: The columns of its primary key. A table by whose partitions rows are dropped has two.
        functions: The functions of the columns of an aggregate table.
        order: The column whose lesser values lose, of a versioned or sequenced table.
        partitions: The partitions of a partitioned table.
        possible: More partitions that may exist: a deletion of rows that do not exist may create them.
        marked: How many ranges of rows were certainly and possibly written without a change for each row.
        marks: The number of the last range in which a key certainly is.
        changelog: What its changelog has: "full", "upsert" if it lacks the rows before changes, or "none".
        changelog_changes: How often that may have changed.
        partly: How many writes it may lack them of, and changes of this option.
        parts: The number of the last of these writes that certainly changed a key.
        author: The id of the writer whose writes follow.
        authors: The id of the writer of each change of a key.
        version: A number that changes with every change of the rows.
        now: The time at which the next write happens, in seconds.
        ttl: After how many seconds a row expires, counted from its last write or a time in it. None: never.
        time: The column with this time. None: the last write counts. A column with a function is not dropped, so it has
            the one that it has anyway.
        may_expire: Whether it has, or has had, a time to live.
        written: When each row was last written.
        expired: The values of the rows that have expired, and when they were written. The server may have removed them
            already, so the last change of these keys, their `-D`, may have happened or not.
        is_silent: Whether expired rows are removed without a `-D`.
        lingering: The values of rows that were removed in this way: readers of the changes may still have them.
        silenced: The keys of all rows that ever were.
        meanings: The numbers of the columns that had each name, if the columns were ever altered.
    """

    name: str
    number: int
    columns: tuple[CheckerColumn, ...]
    engine: str = "last_row"
    options: dict[str, Any] = field(default_factory=dict)
    key: tuple[str, ...] = (KEY,)
    functions: dict[int, str] = field(default_factory=dict)
    order: int | None = None
    partitions: set[str] = field(default_factory=set)
    possible: set[str] = field(default_factory=set)
    marked: tuple[int, int] = _NO_CHANGES
    marks: dict[int, int] = field(default_factory=dict)
    changelog: str = "full"
    changelog_changes: int = 0
    partly: int = 0
    parts: dict[int, int] = field(default_factory=dict)
    author: str = ""
    authors: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    rows: dict[int, Values] = field(default_factory=dict)
    changes: defaultdict[int, list[tuple[str, Values]]] = field(default_factory=lambda: defaultdict(list))
    indexes: set[tuple[int, ...]] = field(default_factory=set)
    version: int = 0
    now: float = 0.0
    ttl: float | None = None
    time: int | None = None
    may_expire: bool = False
    written: dict[int, float] = field(default_factory=dict)
    expired: dict[int, tuple[Values, float]] = field(default_factory=dict)
    is_silent: bool = False
    lingering: dict[int, Values] = field(default_factory=dict)
    silenced: set[int] = field(default_factory=set)
    meanings: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def upsert(self, rows: Iterable[Shown], names: Iterable[str] | None = None, *, tracked: bool = True) -> None:
        """Upserts rows. With names, the other columns keep their values. If not tracked, changes have only a mark."""
        written = [self.column(name) for name in names] if names is not None else list(self.columns)
        for row in rows:
            before = self.rows.get(row[KEY])
            self.partly += self.changelog == "upsert"
            if before is not None and self._is_ignored(before, row):
                continue
            is_kept = before is not None and (names is not None or self.engine in _FOLDING)
            kept = {column.number: column.of(before or {}) for column in self.columns} if is_kept else {}
            values = dict.fromkeys((column.number for column in self.columns), None) | kept
            for column in written:
                values[column.number] = self._merged(column, kept.get(column.number), self._given(column, row))
            if not tracked:
                is_certain = before is None or self._current(before) != self._current(values)
                self._mark(row[KEY], is_certain=is_certain)
            self._set(row[KEY], values, tracked=tracked)

    def _is_ignored(self, before: Values, row: Shown) -> bool:
        if self.order is None:
            return self.engine == "first_row"
        column = next(each for each in self.columns if each.number == self.order)
        old, new = column.of(before), self._given(column, row)
        # Null is the least value.
        return old is not None and (new is None or order_of(new) < order_of(old))

    def _given(self, column: CheckerColumn, row: Shown) -> Any:  # of the column's type
        # Where null means "keep the value", there are no defaults.
        return row.get(column.name, None if self.merges_nulls else column.default)

    def _merged(self, column: CheckerColumn, before: Any, value: Any) -> Any:  # of the column's type
        if self.engine not in _FOLDING:
            return value
        return FOLDS[self.functions.get(column.number, "last_non_null_value")](before, value)

    def delete(self, keys: Iterable[int]) -> None:
        """Deletes the rows that exist among these keys."""
        for key in dict.fromkeys(keys):
            if key in self.rows:
                self._set(key, None)
            else:
                self.partly += self.changelog == "upsert"
                self.possible.add(part_of(key))

    def replace(self, row: Shown) -> None:
        """Makes a row what it would be without a row before it."""
        self._set(
            row[KEY], {column.number: self._merged(column, None, self._given(column, row)) for column in self.columns}
        )

    def settle(self, keys: Iterable[int]) -> None:
        """Removes expired rows for good: no other time to live brings them back."""
        for key in list(keys):
            self.expired.pop(key, None)

    def erase(self, keys: Iterable[int]) -> None:
        """Deletes rows without a change for each. Expired ones may have been removed before, with a change or not."""
        for key in list(keys):
            if key in self.rows or key in self.expired:
                self._mark(key, is_certain=key in self.rows)
                self.version += 1
                self.rows.pop(key, None)
                self.expired.pop(key, None)

    def _mark(self, key: int, *, is_certain: bool) -> None:
        self.marked = (self.marked[0] + is_certain, self.marked[1] + 1)
        if is_certain:
            self.marks[key] = self.marked[0]

    def lacks_changes(self, position: Position) -> set[bool]:
        """Returns whether rows were written after a position without changes, or both if either is possible."""
        certain, possible = position.get(_MARKS, _NO_CHANGES)
        return {self.marked[0] > certain, self.marked[1] > possible}

    def changed(self, key: int, position: Position) -> set[bool]:
        """Returns whether a key has changed since a position, or both if either is possible."""
        then, now = position.get(key, _NO_CHANGES), self.position().get(key, _NO_CHANGES)
        if now[0] > then[1] or self.marks.get(key, 0) > position.get(_MARKS, _NO_CHANGES)[0]:
            return {True}
        if self.parts.get(key, 0) > position.get(_PARTLY, _NO_CHANGES)[0]:
            return {True}
        # A range may have more keys than were written, and an unchanged row may be written again.
        return {False, now[1] > then[0], True in self.lacks_changes(position), self.is_partly_recorded(position)}

    def is_partly_recorded(self, position: Position) -> bool:
        """Returns whether the changelog may lack rows before changes after a position."""
        return self.partly > position.get(_PARTLY, _NO_CHANGES)[0]

    def set_changelog(self, value: str) -> None:
        """Changes what the changelog has of later writes."""
        if (self.changelog, value) == ("full", "upsert"):
            self.marked = (self.marked[0] + 1, self.marked[1] + 1)
        self.partly += self.changelog != value
        self.changelog_changes += 2  # at most, as it may have been "none" in between
        self.changelog = value

    @property
    def has_changes(self) -> bool:
        """Whether readers can follow it."""
        return self.changelog != "none"

    def lose_changes(self) -> None:
        """Loses the changelog, and no row."""
        self.changes.clear()
        self.authors.clear()
        for key, (values, _) in self.expired.items() if not self.is_silent else ():
            self._record(key, ("-D", values))

    def put(self, key: int, values: Values | None) -> None:
        """Makes a row exactly this one, whatever the merge engine is. None: deletes it if it exists."""
        if values is not None or key in self.rows:
            self._set(key, values)

    def _set(self, key: int, values: Values | None, *, tracked: bool = True) -> None:
        before = self.rows.get(key)
        self.version += 1
        self.written[key] = self.now
        # Before another row has the key, the expired one is removed.
        self.expired.pop(key, None)
        self.lingering.pop(key, None)
        if values is not None:
            self.partitions.add(part_of(key))
        if not tracked:
            assert values is not None
            self.rows[key] = values
            self._expire_if_due(key)
            return
        changes: list[tuple[str, Values]] = []
        if values is None:
            assert before is not None
            changes = [("-D", before)]
            del self.rows[key]
        else:
            if before is None:
                changes = [("+I", values)]
            elif self._current(before) != self._current(values) or not self.options.get("row_deduplicate", True):
                changes = [("-U", before), ("+U", values)]
            self.rows[key] = values
        if self.changelog == "full":
            self._record(key, *changes)
        else:
            self.partly += 1
            if changes:
                self.parts[key] = self.partly
        self._expire_if_due(key)

    def _record(self, key: int, *changes: tuple[str, Values]) -> None:
        self.changes[key] += changes
        self.authors[key] += [self.author] * len(changes)

    def expire(self, now: float, slack: float) -> bool:
        """Removes the rows that have expired. Returns False if some row is about to expire, or may just have.

        Args:
            now: The time.
            slack: How many seconds before and after the instant of its expiry it is not known whether a row is there.
        """
        self.now = now
        if self.ttl is None:
            return True
        if not self.is_certain(slack):
            return False
        for key in [*self.rows]:
            self._expire_if_due(key)
        return True

    def is_certain(self, slack: float, staged: Iterable[Values] = ()) -> bool:
        """Returns whether it is known of each row, and of others to be written, if it has expired: see `expire`."""
        defaults = [{column.number: each} for column in self.columns for each in (column.default, column.initial)]
        rows = [(values, self.written[key]) for key, values in self.rows.items()]
        others = [(values, self.now) for values in (*defaults, *staged)]
        ends = [self._end_of(*each) for each in (*rows, *self.expired.values(), *others)]
        return all(end is None or abs(end - self.now) > slack for end in ends)

    def _end_of(self, values: Values, written: float) -> float | None:
        """Returns when a row expires. None: never."""
        if self.ttl is None or self.time is None:
            return self.ttl and written + self.ttl
        time = next((each.of(values) for each in self.columns if each.number == self.time), None)
        return time and (time - CLOCK_START).total_seconds() + self.ttl

    def _is_due(self, values: Values, written: float) -> bool:
        end = self._end_of(values, written)
        return end is not None and end < self.now

    def _expire_if_due(self, key: int) -> None:
        if key not in self.rows or not self._is_due(self.rows[key], self.written[key]):
            return
        values = self.rows.pop(key)
        self.version += 1
        self.expired[key] = (values, self.written[key])
        if self.is_silent:
            self.lingering[key] = values
            self.silenced.add(key)
            return
        self.partly += self.changelog == "upsert"
        self._record(key, ("-D", values))

    def stored(self, key: int) -> Values | None:
        """Returns a row, even if it has expired."""
        return self.rows.get(key, self.expired.get(key, (None,))[0])

    def has_expired(self, row: Shown) -> bool:
        """Returns whether a row has expired by a time in it."""
        return self.time is not None and self._is_due({each.number: row[each.name] for each in self.columns}, self.now)

    def plan_ttl(self, ttl: float | None, time: str | None) -> None:
        """Changes when rows expire, but not yet which have expired. Existing rows may count as written now."""
        number = None if time is None else self.column(time).number
        if number is not None:
            self.functions.setdefault(number, "last_non_null_value")
        elif self.ttl is None or self.time is not None:
            self.written = dict.fromkeys(self.rows, self.now)
            self.expired = {key: (values, self.now) for key, (values, _) in self.expired.items()}
        self.ttl, self.time, self.may_expire = ttl, number, True

    def settle_ttl(self, visible: Iterable[int]) -> None:
        """Decides which expired rows are back after a change of when rows expire.

        Args:
            visible: The keys of the rows that readers see. Expired rows that were not removed may be among them.
        """
        seen = set(visible)
        for key, (values, written) in list(self.expired.items()):
            if self._is_due(values, written):
                continue
            del self.expired[key]
            if key in seen:
                if not self.is_silent:
                    assert exact(self.changes[key].pop()) == exact(("-D", values))
                    self.authors[key].pop()
                self.rows[key], self.written[key] = values, written
                self.version += 1

    def truncate_changes(self, left: Mapping[int, int]) -> None:
        """Loses all changes of each key but so many first ones, and what they have done."""
        for key, count in left.items():
            if count == len(self.changes[key]):
                continue
            del self.changes[key][count:], self.authors[key][count:]
            self.version += 1
            kind, values = self.changes[key][-1] if count else ("-D", {})
            self.rows.pop(key, None)
            if kind in ("+I", "+U"):
                self.rows[key] = values

    def take_over(self, other: CheckerTable, key: int) -> None:
        """Takes over what another model has of a key."""
        self.put(key, other.stored(key))
        self.changes[key], self.authors[key] = other.changes[key], other.authors[key]

    def branch(self) -> CheckerTable:
        """Returns a table with the same rows and without a history. `written` has the keys that are written to it."""
        after = replace(self, rows=dict(self.rows), written={}, possible=set(self.possible), parts={})
        after.expired, after.lingering, after.silenced = {}, {}, set()
        after.changes, after.authors, after.partitions = defaultdict(list), defaultdict(list), set()
        return after

    def _current(self, values: Values) -> Any:
        return exact([column.of(values) for column in self.columns])

    @property
    def has_key(self) -> bool:
        """Whether it has a primary key."""
        return self.engine != "log"

    @property
    def merges_nulls(self) -> bool:
        """Whether a null in a written row keeps the value."""
        return self.engine in _FOLDING

    def keys(self, keys: Iterable[int]) -> list[Any]:
        """Returns keys as the calls of a client take them."""
        return [(part_of(key), key) if PART in self.key else key for key in keys]

    def column(self, name: str) -> CheckerColumn:
        """Returns the column of a name."""
        return next(column for column in self.columns if column.name == name)

    def view(self) -> ModelView:
        """Returns the rows as of now."""
        rows = {key: dict(values) for key, values in self.rows.items()}
        return ModelView(self.columns, rows, self.key, self.has_key)

    def matching(self, name: str, below: Any) -> list[int]:  # a value of the column
        """Returns the keys of the rows whose column is less than a value. Null is not."""
        return self._matching(self.rows, name, below)

    def matching_expired(self, name: str, below: Any) -> list[int]:  # a value of the column
        """As `matching`, of the rows that have expired."""
        return self._matching({key: values for key, (values, _) in self.expired.items()}, name, below)

    def _matching(self, rows: Mapping[int, Values], name: str, below: Any) -> list[int]:
        found = {key: self.column(name).of(values) for key, values in rows.items()}
        return [key for key, value in found.items() if value is not None and value < below]

    def position(self) -> Position:
        """Returns the position after all changes."""
        after = {key: (len(all_) - self._may_lack_last(key), len(all_)) for key, all_ in self.changes.items()}
        return {**after, _MARKS: self.marked, _PARTLY: (self.partly, self.partly)}

    def _may_lack_last(self, key: int) -> bool:
        return key in self.expired and not self.is_silent

    def remains(self) -> dict[int, Shown]:
        """Returns the rows that a reader of the changes may still have, although they have expired."""
        rows = {key: values for key, (values, _) in self.expired.items()} | self.lingering
        return {key: show(self.columns, key, values, self.key) for key, values in rows.items() if key not in self.rows}

    def wrong_changes(
        self,
        position: Position,
        found: Mapping[int, list[Change]],
        forms: Callable[[int, list[Change]], list[list[Change]]] = lambda _, changes: [changes],
    ) -> dict[int, Any]:
        """Returns the expected changes after a position of those keys of which others were found.

        Args:
            position: After which changes they begin.
            found: What was found, by key.
            forms: Returns what may come instead of all changes of a key.
        """
        wrong: dict[int, Any] = {}
        if self.is_partly_recorded(position):
            return wrong
        for key in {*self.changes, *found}:
            shown = [(kind, show(self.columns, key, values, self.key)) for kind, values in self.changes.get(key, ())]
            ends = {len(shown), len(shown) - self._may_lack_last(key)}
            starts = set(position.get(key, _NO_CHANGES))
            allowed = [form for start in starts for end in ends for form in forms(key, shown[start:end])]
            if exact(found.get(key, [])) not in exact(allowed):
                wrong[key] = allowed[0]
        return wrong

    def alter(
        self, change: Callable[[CheckerColumn], CheckerColumn | None], added: Iterable[CheckerColumn] = ()
    ) -> None:
        """Changes each column (None: drops it), and adds others at the end."""
        kept = [changed for column in self.columns if (changed := change(column)) is not None]
        for column in (*self.columns, *kept, *added):
            self.meanings[column.name].add(column.number)
        self.columns = (*kept, *added)

    def is_altered(self, before: Iterable[CheckerColumn], names: Iterable[str] | None) -> set[bool]:
        """Returns whether names meant something else in a table with other columns. None: all names.

        Both, if a name has meant something else in between.
        """
        used = {column.name for column in (*before, *self.columns)} if names is None else {*names}
        then, now = ([each for each in columns if each.name in used] for columns in (before, self.columns))
        if {each.name: each.number for each in then} != {each.name: each.number for each in now}:
            return {True}
        if [(each.number, each.kind) for each in then] != [(each.number, each.kind) for each in now]:
            return {True, False}
        return {True, False} if any(len(self.meanings.get(name, ())) > 1 for name in used) else {False}
