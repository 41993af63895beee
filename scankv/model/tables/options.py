"""The options of tables, their values and defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final

from scankv.model.errors import InvalidOption, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MERGE_ENGINES: Final = ("last_row", "first_row", "versioned", "partial_update", "aggregate")
"""The values of the option `merge_engine`."""

_VALUES: Final[dict[str, tuple[str, ...]]] = {
    "merge_engine": MERGE_ENGINES,
    "delete_behavior": ("default", "allow", "ignore", "disable", "retract"),
    "changelog": ("full", "upsert", "input", "none"),
    "row_deduplicate": ("true", "false"),
    "compression": ("none", "lz4", "zstd"),
    "columnar_base": ("off", "auto", "eager"),
    "ttl_changes": ("delete", "none"),
}


_RANGES: Final[dict[str, tuple[int, int]]] = {
    "log_retention_seconds": (0, 10 * 365 * 86_400),
    "log_retention_bytes": (0, 2**60),
    "ttl_seconds": (0, 100 * 365 * 86_400),
}
_TEXTS: Final = ("ttl_column", "partition_ttl", "partition_ttl_column", "partition_ttl_format")
"""Options with any text. They are checked together with the definition of the table."""
_MAX_TEXT: Final = 256
_NAMES: Final = (*_VALUES, *_RANGES, *_TEXTS)
_FIXED: Final = {
    "merge_engine": "the rows of the table were merged by it",
    "delete_behavior": "transactions that are open were checked by it",
    "compression": "the files of the table were written with it",
}
"""The options that do not change after the table was created, and why."""
_DELETE_BEHAVIORS: Final[dict[str, tuple[str, ...]]] = {
    "last_row": ("allow", "ignore", "disable"),
    "first_row": ("ignore", "disable"),
    "versioned": ("ignore", "disable"),
    "partial_update": ("disable", "ignore", "allow", "retract"),
    "aggregate": ("ignore", "allow", "disable"),
}
"""The delete behaviors of each merge engine, the default first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """The options of a table. They are set when the table is created; `alter` says which can change later.

    Attributes:
        merge_engine: What an upsert of an existing key does. `last_row`: the new row replaces the old one, unless it is
            older by the table's sequence columns. `first_row`: the old row stays. `versioned`: the row with the higher
            version wins; of equal versions, the new row. `partial_update`: the new row replaces each column in which it
            is not null, but a sequence group only if the new row is not older. `aggregate`: each column is merged by
            its aggregator.
        delete_behavior: What a delete does. `allow`: it removes the row, or sets the columns that it names to null.
            `ignore`: it does nothing. `disable`: it is refused. `retract`: it retracts the deleted row from the
            sequence groups. `default`: `allow` for `last_row`, `disable` for `partial_update`, otherwise `ignore`.
        changelog: What the changelog contains for each change. `full`: the row before and the row after the change.
            `upsert`: the row after the change, or the key of a deleted row. `input`: the rows of each write as they
            came, before they are merged, for readers that merge them by themselves. `none`: nothing, so the table has
            no stream of changes. With `full` and `input`, and in tables with an index, a write reads the rows that it
            replaces. Otherwise,
            every key that is written is a change, even if its row stays the same or the deleted key has no row, and the
            server does not know the number of rows: counting reads them all.
        row_deduplicate: Whether the changelog leaves out upserts that do not change their row. This has an effect only
            if writes read the rows that they replace; see `changelog`.
        compression: How rows are compressed on disk: `none`, `lz4` or `zstd`. The changelog is compressed only with
            `zstd`, because LZ4 hardly shrinks it.
        log_retention_seconds: The maximum age of the changes in the changelog, in seconds, up to 10 years. 0: no limit,
            which is the default of tables without a primary key.
        log_retention_bytes: The maximum size of the changelog of each bucket, in bytes as written. 0: no limit.
        columnar_base: Whether the server also keeps the rows of each bucket as Arrow files, with later changes in
            memory, which makes scans several times faster. `auto`: for buckets with many rows that are scanned.
            `eager`: for all buckets with rows. `off`: for no bucket, which is the only value of tables without a
            primary key. Tables that were created before `auto` became the default keep `off`.
        ttl_seconds: How long rows live, in seconds, up to 100 years: expired rows are invisible at once, and removed in
            the background. 0: rows do not expire.
        ttl_column: The date or timestamp column from which `ttl_seconds` counts; a row with a null there never
            expires. Empty: it counts from the last write of the row.
        ttl_changes: What the changelog contains when expired rows are removed. `delete`: their deletion. `none`:
            nothing, so readers of the changelog have to expire the rows themselves.
        partition_ttl: How long after the time in their `partition_ttl_column` partitions are dropped, in calendar
            units: `12 hours`, `7 days`, `2 weeks`, `3 months`, `1 year`. Empty: never.
        partition_ttl_column: The partition column with the time of the partition: a date, the beginning of its day in
            UTC; a timestamp; or text. Empty: the first one with dates or timestamps, or else the first one with text.
        partition_ttl_format: The format of the times in a text column, as for Python's `strptime`. Empty: `%Y-%m-%d`.
    """

    merge_engine: str = "last_row"
    delete_behavior: str = "default"
    changelog: str = "full"
    row_deduplicate: bool = True
    compression: str = "lz4"
    log_retention_seconds: int = 7 * 86_400
    log_retention_bytes: int = 0
    columnar_base: str = "auto"
    ttl_seconds: int = 0
    ttl_column: str = ""
    ttl_changes: str = "delete"
    partition_ttl: str = ""
    partition_ttl_column: str = ""
    partition_ttl_format: str = ""

    def __post_init__(self) -> None:
        """Raises InvalidOption if a value is not allowed."""
        if not isinstance(self.row_deduplicate, bool):
            raise InvalidOption(
                f"row_deduplicate must be True or False, not {self.row_deduplicate!r}", option="row_deduplicate"
            )
        for name, text in _texts(self).items():
            _check(name, text)
        possible = _DELETE_BEHAVIORS[self.merge_engine]
        if self.delete_behavior not in ("default", *possible):
            allowed = " or ".join(f'"{value}"' for value in possible)
            raise InvalidOption(
                f'delete_behavior must be {allowed} with merge_engine "{self.merge_engine}", not '
                f'"{self.delete_behavior}"',
                option="delete_behavior",
            )
        if self.merge_engine == "aggregate" and self.changelog not in ("full", "input"):
            raise InvalidOption(
                f'changelog must be "full" or "input" with merge_engine "aggregate", not "{self.changelog}"',
                option="changelog",
            )
        if self.ttl_column and not self.ttl_seconds:
            raise InvalidOption(
                f'table option "ttl_column" is set to "{self.ttl_column}", but "ttl_seconds" is 0, so no row expires: '
                "set both or neither",
                option="ttl_column",
            )

    @property
    def deletes(self) -> str:
        """The effective `delete_behavior`."""
        return _DELETE_BEHAVIORS[self.merge_engine][0] if self.delete_behavior == "default" else self.delete_behavior

    @property
    def expires_by_write(self) -> bool:
        """Whether rows expire by their last write."""
        return bool(self.ttl_seconds) and not self.ttl_column

    @property
    def before_images(self) -> bool:
        """Whether the changelog has the rows before changes."""
        return self.changelog == "full"

    @classmethod
    def from_strings(cls, options: Mapping[str, str]) -> TableOptions:
        """Reads options in the form of the wire protocol. Missing options have their defaults.

        Raises:
            InvalidOption: An option does not exist, or its value is not allowed.
        """
        for name, text in options.items():
            _check(name, text)
        values = {name: _value(name, text) for name, text in options.items()}
        return cls(**values)  # type: ignore[arg-type]  # each value was checked by its name

    def alter(self, changed: Mapping[str, str], reset: Iterable[str] = ()) -> TableOptions:
        """Returns the options with other values, as far as an existing table can change them.

        `changelog`, `row_deduplicate`, `log_retention_seconds`, `log_retention_bytes`, `columnar_base`, and those of
        `ttl` and `partition_ttl` can change. Any option may be given its current value.

        Args:
            changed: New values, in the form of `from_strings`.
            reset: Options to set to their defaults.

        Raises:
            InvalidOption: An option does not exist, is given twice, cannot change, or cannot have the value.
        """
        texts = dict(changed)
        defaults = _texts(TableOptions())
        for name in reset:
            if name in texts:
                raise InvalidOption(f'table option "{name}" is given twice: set it or reset it once', option=name)
            # The check has the message for an option that does not exist.
            texts[name] = defaults.get(name, "")
        before = _texts(self)
        for name, text in texts.items():
            _check(name, text)
            why = _why_fixed(name, before[name], text)
            if why is not None:
                raise InvalidOption(
                    f'table option "{name}" cannot change from "{before[name]}" to "{text}", because {why}: '
                    "create another table with this option, such as with `scankv create --like`, and copy the rows",
                    option=name,
                )
        values = {name: _value(name, text) for name, text in texts.items()}
        return replace(self, **values)  # type: ignore[arg-type]  # each value was checked by its name

    def to_strings(self) -> dict[str, str]:
        """Returns the options that differ from their defaults, in the form that `from_strings` reads."""
        defaults = _texts(TableOptions())
        return {name: text for name, text in _texts(self).items() if text != defaults[name]}


def _why_fixed(name: str, before: str, after: str) -> str | None:
    """Returns why an option cannot change from one value to another. None: it can."""
    if before == after:
        return None
    if name == "changelog" and "input" in (before, after):
        return "a write that is repeated after the change would be applied in another order"
    return _FIXED.get(name)


def _value(name: str, text: str) -> str | bool | int:
    if name == "row_deduplicate":
        return text == "true"
    return int(text) if name in _RANGES else text


def _texts(options: TableOptions) -> dict[str, str]:
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}


def _check(name: str, text: str) -> None:
    if name not in _NAMES:
        raise InvalidOption(f'there is no table option "{name}"{did_you_mean(name, _NAMES)}', option=name)
    if name in _RANGES:
        low, high = _RANGES[name]
        if not (text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high):
            raise InvalidOption(
                f'table option "{name}" must be a whole number between {low:,} and {high:,}, not "{text}"', option=name
            )
    elif name in _TEXTS:
        if len(text) > _MAX_TEXT:
            raise InvalidOption(
                f'table option "{name}" must have at most {_MAX_TEXT} characters, not {len(text):,}', option=name
            )
    elif text not in _VALUES[name]:
        allowed = " or ".join(f'"{value}"' for value in _VALUES[name])
        raise InvalidOption(f'table option "{name}" must be {allowed}, not "{text}"', option=name)
