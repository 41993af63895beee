"""Names of tables (`database.table`) and columns, and ids of consumers and writers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scankv.model.errors import InvalidRequest
from scankv.model.limits import MAX_NAME_LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterable

_PART = re.compile(rf"[A-Za-z_][A-Za-z0-9_-]{{0,{MAX_NAME_LENGTH - 1}}}")
_WRITER_ID = re.compile(rf"[A-Za-z0-9._:-]{{1,{MAX_NAME_LENGTH}}}")
_CONSUMER_ID = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_NAME_LENGTH}}}")
_SNAPSHOT_NAME = _CONSUMER_ID
_TABLET: Final = "#"
_MAX_PRINCIPAL: Final = 200


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """The full name of a table. Case matters.

    Attributes:
        database: The part before the dot.
        table: The part after the dot. Each part has 1 to 128 of `A-Z a-z 0-9 _ -` and begins with a letter or `_`.
    """

    database: str
    table: str

    def __post_init__(self) -> None:
        """Raises InvalidRequest if a part has other characters or a wrong length."""
        for role, part in (("database", self.database), ("table", self.table)):
            if not _PART.fullmatch(part):
                raise InvalidRequest(
                    f'"{_short(str(self))}" is not a table name: its {role} part must be 1 to {MAX_NAME_LENGTH} of '
                    "A-Z a-z 0-9 _ - and begin with a letter or _",
                    table=_short(str(self)),
                )

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Reads a name such as `game.scores`.

        Raises:
            InvalidRequest: The text is not two valid names joined by one dot.
        """
        parts = text.split(".")
        if len(parts) != 2:
            raise InvalidRequest(
                f'"{_short(text)}" is not a table name: write database.table, such as game.scores', table=_short(text)
            )
        return cls(*parts)

    def __str__(self) -> str:
        """Returns the form that `parse` reads."""
        return f"{self.database}.{self.table}"


def tablet_name(table: str, number: int) -> str:
    """Returns the name under which the server keeps a tablet. No table can have it, because of its `#`."""
    return f"{table}{_TABLET}{number}"


def table_of(name: str) -> str:
    """Returns the table that the name of a table or of a tablet belongs to."""
    return name.partition(_TABLET)[0]


def with_table_names(text: str, names: Iterable[str]) -> str:
    """Returns a text for users, in which the names of tables replace the names of their tablets."""
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, table_of(name))
    return text


def tablet_number(name: str) -> int | None:
    """Returns the number of the tablet that has a name. None: it is not the name of a tablet."""
    _, mark, number = name.partition(_TABLET)
    return int(number) if mark and number.isascii() and number.isdecimal() else None


def lock_order(name: str) -> tuple[str, int]:
    """Returns the place of a table or tablet in the order in which all tasks lock their buckets."""
    number = tablet_number(name)
    return table_of(name), -1 if number is None else number


def check_consumer_id(consumer_id: object) -> None:
    """Raises InvalidRequest unless the id is valid for a consumer. It names a file, so it cannot be `.` or `..`."""
    if not isinstance(consumer_id, str) or consumer_id in (".", "..") or not _CONSUMER_ID.fullmatch(consumer_id):
        raise InvalidRequest(
            f"{_short(repr(consumer_id))} is not the id of a consumer: it must be 1 to {MAX_NAME_LENGTH} of "
            'A-Z a-z 0-9 . _ - and neither "." nor ".."'
        )


def check_writer_id(writer_id: object) -> None:
    """Raises InvalidRequest unless the id is valid for a writer or the owner of a lock."""
    if not isinstance(writer_id, str) or writer_id in (".", "..") or not _WRITER_ID.fullmatch(writer_id):
        raise InvalidRequest(
            f"{_short(repr(writer_id))} is not the id of a writer: it must be 1 to {MAX_NAME_LENGTH} of "
            'A-Z a-z 0-9 . _ : - and neither "." nor ".."'
        )


def check_principal(name: str) -> None:
    """Raises InvalidRequest unless a text may be the name of a principal."""
    if not 0 < len(name) <= _MAX_PRINCIPAL or not name.isprintable():
        raise InvalidRequest(
            f"principal must be 1 to {_MAX_PRINCIPAL} printable characters, not {name[:_MAX_PRINCIPAL]!r}"
        )


def check_snapshot_name(name: object) -> None:
    """Raises InvalidRequest unless a snapshot can have this name."""
    if not isinstance(name, str) or not _SNAPSHOT_NAME.fullmatch(name):
        raise InvalidRequest(
            f"{_short(repr(name))} is not the name of a snapshot: it must be 1 to {MAX_NAME_LENGTH} of "
            "A-Z a-z 0-9 . _ -"
        )


def is_column_name(name: object) -> bool:
    """Returns whether the name is text and valid UTF-8. Command-line arguments can contain invalid UTF-8."""
    if not isinstance(name, str):
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _short(text: str) -> str:
    """Returns the text, shortened for a message."""
    longest = 2 * MAX_NAME_LENGTH + 1
    return text if len(text) <= longest else text[:longest] + "..."
