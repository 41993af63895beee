"""Which options a table has, their values and defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from table_model.errors import InvalidOption, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

_VALUES: Final[dict[str, tuple[str, ...]]] = {
    "merge_engine": ("last_row",),
    "changelog": ("full",),
    "row_deduplicate": ("true", "false"),
    "compression": ("none", "lz4", "zstd"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """What can be chosen for a table when it is created.

    Attributes:
        merge_engine: What an upsert of an existing key does. `last_row`: the new row replaces the old one.
        changelog: What the changelog keeps of a change. `full`: the row before and the row after it.
        row_deduplicate: Whether an upsert that leaves a row as it is takes no place in the changelog.
        compression: How the rows are compressed on disk: `none`, `lz4` or `zstd`.
    """

    merge_engine: str = "last_row"
    changelog: str = "full"
    row_deduplicate: bool = True
    compression: str = "lz4"

    def __post_init__(self) -> None:
        """Raises InvalidOption for a value that the option does not have."""
        if not isinstance(self.row_deduplicate, bool):
            raise InvalidOption("row_deduplicate is True or False", option="row_deduplicate")
        for name, text in _texts(self).items():
            _check(name, text)

    @classmethod
    def from_strings(cls, options: Mapping[str, str]) -> TableOptions:
        """Reads options as they come over the wire; those not given keep their defaults.

        Raises:
            InvalidOption: An option does not exist, or its value is not allowed. Names the option and what there is.
        """
        for name, text in options.items():
            _check(name, text)
        values = {name: text == "true" if name == "row_deduplicate" else text for name, text in options.items()}
        return cls(**values)  # type: ignore[arg-type]  # each value was checked by its name

    def to_strings(self) -> dict[str, str]:
        """The options that differ from their defaults, in the form that `from_strings` reads."""
        defaults = _texts(TableOptions())
        return {name: text for name, text in _texts(self).items() if text != defaults[name]}


def _texts(options: TableOptions) -> dict[str, str]:
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}


def _check(name: str, text: str) -> None:
    if name not in _VALUES:
        raise InvalidOption(f'there is no table option "{name}"{did_you_mean(name, _VALUES)}', option=name)
    if text not in _VALUES[name]:
        allowed = " or ".join(f'"{value}"' for value in _VALUES[name])
        raise InvalidOption(f'table option "{name}" cannot be "{text}"; it is {allowed}', option=name)
