"""Log offsets of the buckets of a table, with the table incarnation that they belong to.

Offsets are valid for one incarnation of a table only. A table that is dropped and created again under the same name
numbers its changes from 0 again, and a restored table continues from an earlier state, so the same offsets name other
changes. Code that returns offsets therefore includes the incarnation, and code that accepts offsets calls
`check_offsets_of` before it uses them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Self

from scankv.model.errors import TableRecreated, UsageError
from scankv.model.limits import MAX_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from scankv.model.tables.schema import TableDefinition

_FORM: Final = 'LogOffsets.to_json() gives {"table_incarnation": "...", "log_offsets": {"0": 17, ...}}'


class LogOffsets(dict[int, int]):
    """The log offset of each bucket. Equal to a dictionary with the same items. Picklable; `to_json` stores it.

    A plain dictionary such as `dict(offsets)` loses the table incarnation.

    Attributes:
        table_incarnation: The incarnation of the table that the offsets belong to. It changes when the table is dropped
            and created again under the same name, when it is restored from a backup, and when a recovery does not know
            where its history ends. Empty: unknown.
    """

    table_incarnation: str = ""

    def __init__(self, offsets: Mapping[int, int] | Iterable[tuple[int, int]] = ()) -> None:
        """Copies offsets, with the incarnation if they are `LogOffsets`."""
        super().__init__(offsets)
        self.table_incarnation = self.incarnation_of(offsets)

    @classmethod
    def of(cls, offsets: Mapping[int, int], table_incarnation: str) -> Self:
        """Returns offsets of a known incarnation."""
        known = cls(offsets)
        known.table_incarnation = table_incarnation
        return known

    def copy(self) -> Self:
        """Returns a copy with the same incarnation."""
        return type(self)(self)

    def of_buckets(self, buckets: Iterable[int]) -> Self:
        """Returns the offsets of some buckets. Raises KeyError for a bucket without an offset."""
        return self.of({bucket: self[bucket] for bucket in buckets}, self.table_incarnation)

    def __or__(self, other: Mapping[int, int]) -> Self:  # type: ignore[override]
        """Joins offsets, such as those of several shards. Raises UsageError if they belong to different tables."""
        mine, theirs = self.table_incarnation, self.incarnation_of(other)
        if mine and theirs and mine != theirs:
            raise UsageError("these log offsets belong to different tables: join offsets of one table only")
        return self.of({**self, **other}, mine or theirs)

    def advance(self, offsets: Mapping[int, int], table_incarnation: str) -> None:
        """Advances the offsets to those of a later write; offsets of another incarnation replace all of them."""
        if table_incarnation != self.table_incarnation:
            self.clear()
            self.table_incarnation = table_incarnation
        for bucket, offset in offsets.items():
            self[bucket] = max(offset, self.get(bucket, offset))

    def to_json(self) -> str:
        """Returns the offsets and the table incarnation as JSON text, to be stored with the state of a job."""
        values = {"table_incarnation": self.table_incarnation, "log_offsets": {str(b): self[b] for b in sorted(self)}}
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: str | bytes | Mapping[str, Any]) -> Self:
        """Reads the result of `to_json`, as text or parsed. Other entries are ignored.

        Raises:
            UsageError: The value has another form.
        """
        try:
            values = json.loads(text) if isinstance(text, str | bytes) else text
            incarnation, offsets = values["table_incarnation"], values["log_offsets"]
            known = {int(bucket): offset for bucket, offset in offsets.items()}
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
            raise UsageError(f"{text!r:.80} is not the JSON form of LogOffsets: {_FORM}") from None
        if not isinstance(incarnation, str) or not all(map(_is_position, known.items())):
            raise UsageError(f"{text!r:.80} is not the JSON form of LogOffsets: {_FORM}")
        return cls.of(known, incarnation)

    @staticmethod
    def incarnation_of(offsets: object) -> str:
        """Returns the table incarnation of some offsets. Empty if it is unknown."""
        return offsets.table_incarnation if isinstance(offsets, LogOffsets) else ""


def _is_position(item: tuple[object, object]) -> bool:
    bucket, offset = item
    return (
        isinstance(bucket, int)
        and 0 <= bucket < MAX_BUCKETS
        and isinstance(offset, int)
        and not isinstance(offset, bool)
        and 0 <= offset < 2**63
    )


def check_incarnation(of_offsets: str, table: str, incarnation: str) -> None:
    """Checks that log offsets belong to the current incarnation of a table.

    Args:
        of_offsets: The incarnation of the offsets. Empty: unknown, which is accepted.
        table: The name of the table.
        incarnation: The current incarnation of the table.

    Raises:
        TableRecreated: The offsets belong to another incarnation.
    """
    if of_offsets not in ("", incarnation):
        raise TableRecreated(
            f"table {table} was restored, or dropped and created again, after these log offsets were returned; nothing "
            "was done: start again from the current table",
            table=table,
        )


def check_offsets_of(definition: TableDefinition, of_offsets: str) -> None:
    """Checks in the server that log offsets belong to a table.

    Rule: offsets that name no incarnation belong to the first incarnation of a name. A later incarnation refuses them,
    because they may come from an earlier one and name other changes.

    Args:
        definition: The table or tablet. A tablet accepts offsets without an incarnation, because its table has checked
            them before.
        of_offsets: The incarnation of the offsets. Empty: they name none.

    Raises:
        TableRecreated: The offsets belong to another incarnation, or may do so.
    """
    if not of_offsets and definition.has_predecessor and definition.tablet is None:
        raise TableRecreated(
            f"table {definition.name} was restored, or dropped and created again, and these log offsets name no "
            "incarnation; nothing was done: use offsets that name theirs, such as those that LogOffsets.to_json() "
            "stores, or start again from the current table",
            table=definition.name,
        )
    check_incarnation(of_offsets, definition.name, definition.incarnation)
