"""The options of tables, their values and defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from scankv.model.errors import InvalidOption, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

_VALUES: Final[dict[str, tuple[str, ...]]] = {
    "merge_engine": ("last_row", "first_row", "versioned", "partial_update", "aggregate"),
    "delete_behavior": ("default", "allow", "ignore", "disable", "retract"),
    "changelog": ("full", "upsert", "none"),
    "row_deduplicate": ("true", "false"),
    "compression": ("none", "lz4", "zstd"),
    "columnar_base": ("off", "auto", "eager"),
}


_RANGES: Final[dict[str, tuple[int, int]]] = {
    "log_retention_seconds": (1, 10 * 365 * 86_400),
    "log_retention_bytes": (0, 2**60),
}
_NAMES: Final = (*_VALUES, *_RANGES)
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
    """The options of a table, which are set when it is created.

    Attributes:
        merge_engine: What an upsert of an existing key does. `last_row`: the new row replaces the old one, unless it is
            older by the table's sequence columns. `first_row`: the old row stays. `versioned`: the row with the higher
            version stays, of equal ones the new one. `partial_update`: each column that is not null is replaced, and
            sequence groups only by rows that are not older. `aggregate`: each column has a function.
        delete_behavior: What a delete does. `allow`: it removes the row, or makes null the columns that it names.
            `ignore`: nothing. `disable`: it is refused. `retract`: a row that comes as deleted is taken back from
            sequence groups. `default`: with `last_row` as `allow`, with `partial_update` as `disable`, else `ignore`.
        changelog: What the changelog keeps of a change. `full`: the row before and the row after it. `upsert`: the row
            after it, or the key of a deleted row. `none`: nothing, so that there is no stream of changes. Only with
            `full`, or where the table has an index, a write reads the rows that it replaces. Where it does not, each
            key that is written is a change: also a row that stays as it is, and the deletion of a key that is not
            there. And the number of rows is not known then: counting them reads them.
        row_deduplicate: Whether an upsert that leaves a row as it is takes no place in the changelog. Needs the row
            before it to be read, see `changelog`.
        compression: How the rows are compressed on disk: `none`, `lz4` or `zstd`. The changelog, which LZ4 does little
            for, is only with `zstd`.
        log_retention_seconds: How old the changes get that the changelog keeps, 1 second to 10 years.
        log_retention_bytes: How many bytes of changes, as they were written, each bucket keeps at most. 0: any number.
        columnar_base: Whether the server keeps the rows of each bucket also as Arrow files, which scans read many times
            faster, with what was written since in memory: `auto` for buckets with many rows that are scanned, `eager`
            for all that have any rows, `off` for none.
    """

    merge_engine: str = "last_row"
    delete_behavior: str = "default"
    changelog: str = "full"
    row_deduplicate: bool = True
    compression: str = "lz4"
    log_retention_seconds: int = 7 * 86_400
    log_retention_bytes: int = 0
    columnar_base: str = "off"

    def __post_init__(self) -> None:
        """Raises InvalidOption for a value that the option does not have."""
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
        if self.merge_engine == "aggregate" and self.changelog != "full":
            raise InvalidOption(
                f'changelog must be "full" with merge_engine "aggregate", not "{self.changelog}"',
                option="changelog",
            )

    @property
    def deletes(self) -> str:
        """The effective `delete_behavior`."""
        return _DELETE_BEHAVIORS[self.merge_engine][0] if self.delete_behavior == "default" else self.delete_behavior

    @property
    def before_images(self) -> bool:
        """Whether the changelog has the rows before changes."""
        return self.changelog == "full"

    @classmethod
    def from_strings(cls, options: Mapping[str, str]) -> TableOptions:
        """Reads options as they come over the wire; those not given keep their defaults.

        Raises:
            InvalidOption: An option does not exist, or its value is not allowed. Names the option and what there is.
        """
        for name, text in options.items():
            _check(name, text)
        values = {name: _value(name, text) for name, text in options.items()}
        return cls(**values)  # type: ignore[arg-type]  # each value was checked by its name

    def to_strings(self) -> dict[str, str]:
        """The options that differ from their defaults, in the form that `from_strings` reads."""
        defaults = _texts(TableOptions())
        return {name: text for name, text in _texts(self).items() if text != defaults[name]}


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
    elif text not in _VALUES[name]:
        allowed = " or ".join(f'"{value}"' for value in _VALUES[name])
        raise InvalidOption(f'table option "{name}" must be {allowed}, not "{text}"', option=name)
