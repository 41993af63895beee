"""What must a server answer? Tables as dictionaries, and for each key the list of its changes.

Plain Python, which shares nothing with the product: a fault in a shared function would be on both sides.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

KEY: Final = "k"
"""The name of the key column of every table. It is an int64."""

Values: TypeAlias = dict[int, Any]
"""The values of a row outside the key, by the number of the column. A missing one is null."""

Shown: TypeAlias = dict[str, Any]
"""A row as a reader gets it: by the names of the columns, with the key."""

Change: TypeAlias = tuple[str, Shown]
"""The symbol of a row kind, and the row."""

Position: TypeAlias = dict[int, tuple[int, int]]
"""How many changes of each key come before a position, at least and at most. A missing key has none."""

_NO_CHANGES: Final = (0, 0)


@dataclass(frozen=True, slots=True)
class CheckerColumn:
    """A column outside the key. Its number stays when it is renamed; no other column ever has it."""

    number: int
    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class ModelView:
    """The rows and columns of a table at one instant."""

    columns: tuple[CheckerColumn, ...]
    rows: Mapping[int, Values]

    def shown(self) -> dict[int, Shown]:
        """Returns the rows by key, as a reader of the view gets them."""
        return {key: show(self.columns, key, values) for key, values in self.rows.items()}


@dataclass
class CheckerTable:
    """One table, from its creation until it is dropped.

    Attributes:
        name: Its name.
        number: Tells it from every other table that ever had the name.
        columns: The columns outside the key, in order.
        rows: The rows by key.
        changes: The changes of each key in their order: the symbol of the row kind, and the values.
        indexes: The names of the indexed columns.
        engine: How rows with one key are merged: "last_row", "first_row", or "sum", which adds up every column.
        options: How it was created.
        version: A number that changes with every change of the rows.
        now: The time at which the next write happens, in seconds.
        ttl: After how many seconds a row expires, counted from its last write. None: never.
        written: When each row was last written.
        expired: The values of the rows that have expired, and when they were written. The server may have removed them
            already, so the last change of these keys, their `-D`, may have happened or not.
        meanings: The numbers of the columns that had each name, if the columns were ever altered.
    """

    name: str
    number: int
    columns: tuple[CheckerColumn, ...]
    engine: str = "last_row"
    options: dict[str, Any] = field(default_factory=dict)
    rows: dict[int, Values] = field(default_factory=dict)
    changes: defaultdict[int, list[tuple[str, Values]]] = field(default_factory=lambda: defaultdict(list))
    indexes: set[int] = field(default_factory=set)
    version: int = 0
    now: float = 0.0
    ttl: float | None = None
    written: dict[int, float] = field(default_factory=dict)
    expired: dict[int, tuple[Values, float]] = field(default_factory=dict)
    meanings: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def upsert(self, rows: Iterable[Shown], names: Iterable[str] | None = None) -> None:
        """Upserts rows. With names, the other columns keep their values."""
        written = [self.column(name) for name in names] if names is not None else list(self.columns)
        for row in rows:
            before = self.rows.get(row[KEY])
            if before is not None and self.engine == "first_row":
                continue
            is_kept = names is not None or self.engine == "sum"
            after = dict(before or {}) if is_kept else {}
            for column in written:
                after[column.number] = self._merged(after.get(column.number), row.get(column.name))
            self._set(row[KEY], {number: value for number, value in after.items() if value is not None})

    def _merged(self, before: Any, value: Any) -> Any:  # of the column's type
        if self.engine != "sum" or before is None:
            return value
        return before if value is None else before + value

    def delete(self, keys: Iterable[int]) -> None:
        """Deletes the rows that exist among these keys."""
        for key in dict.fromkeys(keys):
            if key in self.rows:
                self._set(key, None)

    def put(self, key: int, values: Values | None) -> None:
        """Gives a key other values, or none."""
        if values is not None or key in self.rows:
            self._set(key, values)

    def _set(self, key: int, values: Values | None) -> None:
        before = self.rows.get(key)
        self.version += 1
        self.written[key] = self.now
        # Before another row has the key, the expired one is removed.
        self.expired.pop(key, None)
        if values is None:
            assert before is not None
            self.changes[key].append(("-D", before))
            del self.rows[key]
            return
        if before is None:
            self.changes[key].append(("+I", values))
        elif self._current(before) != self._current(values):
            self.changes[key] += [("-U", before), ("+U", values)]
        self.rows[key] = values

    def expire(self, now: float, slack: float) -> bool:
        """Removes the rows that have expired. Returns False if some row is about to expire, or may just have.

        Args:
            now: The time.
            slack: How many seconds before and after the instant of its expiry it is not known whether a row is there.
        """
        self.now = now
        if self.ttl is None:
            return True
        is_certain = True
        for key in [key for key in self.rows if self.written[key] + self.ttl - slack < now]:
            if now < self.written[key] + self.ttl + slack:
                is_certain = False
                continue
            values = self.rows.pop(key)
            self.version += 1
            self.changes[key].append(("-D", values))
            self.expired[key] = (values, self.written[key])
        return is_certain

    def set_ttl(self, ttl: float | None, visible: Iterable[int]) -> None:
        """Changes when rows expire.

        Args:
            ttl: The time to live from now on.
            visible: The keys of the rows that readers see then. Expired rows that were not removed may be back.
        """
        if self.ttl is None:
            self.written = dict.fromkeys(self.rows, self.now)
        self.ttl = ttl
        self.version += 1
        seen = set(visible)
        for key, (values, written) in list(self.expired.items()):
            if ttl is not None and written + ttl < self.now:
                continue
            del self.expired[key]
            if key in seen:
                assert self.changes[key].pop() == ("-D", values)
                self.rows[key], self.written[key] = values, written

    def _current(self, values: Values) -> list[Any]:
        return [values.get(column.number) for column in self.columns]

    def column(self, name: str) -> CheckerColumn:
        """Returns the column of a name."""
        return next(column for column in self.columns if column.name == name)

    def view(self) -> ModelView:
        """Returns the rows as of now."""
        return ModelView(self.columns, {key: dict(values) for key, values in self.rows.items()})

    def matching(self, name: str, below: Any) -> list[int]:  # a value of the column
        """Returns the keys of the rows whose column is less than a value. Null is not."""
        number = self.column(name).number
        return [key for key, values in self.rows.items() if number in values and values[number] < below]

    def position(self) -> Position:
        """Returns the position after all changes."""
        return {key: (len(all_) - (key in self.expired), len(all_)) for key, all_ in self.changes.items()}

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
        wrong = {}
        for key in {*self.changes, *found}:
            shown = [(kind, show(self.columns, key, values)) for kind, values in self.changes.get(key, ())]
            ends = {len(shown), len(shown) - (key in self.expired)}
            starts = set(position.get(key, _NO_CHANGES))
            allowed = [form for start in starts for end in ends for form in forms(key, shown[start:end])]
            if found.get(key, []) not in allowed:
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
        if [each for each in before if each.name in used] != [each for each in self.columns if each.name in used]:
            return {True}
        return {True, False} if any(len(self.meanings.get(name, ())) > 1 for name in used) else {False}


def show(columns: Iterable[CheckerColumn], key: int, values: Values) -> Shown:
    """Returns a row as a reader gets it."""
    return {KEY: key, **{column.name: values.get(column.number) for column in columns}}
