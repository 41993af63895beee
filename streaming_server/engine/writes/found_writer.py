"""What buckets know of a writer that is opened, and to whom it belongs then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from scankv.model.names import table_of
from streaming_server.access.owners import current_principal, new_owner, owner_check

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.bucket.writer_states import WriterState


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundWriter:
    """What buckets know of a writer that is opened. Immutable.

    Attributes:
        epoch: Its newest epoch. 0: none knows that it was opened.
        next_sequence: As in `WriterState`.
        owner: Its principal, as in `WriterState`.
    """

    epoch: int = 0
    next_sequence: int = 0
    owner: str | None = None

    @classmethod
    def of(cls, writer: str, states: Iterable[WriterState | None], definition: TableDefinition) -> Self:
        """Joins what buckets know. Raises PermissionDenied if the writer belongs to another principal."""
        known = [state for state in states if state is not None]
        owners = [state.principal for state in known if state.principal is not None]
        check = owner_check(f'the writer "{writer}" of {table_of(definition.name)}', [definition.name])
        for each in owners:
            check(each)
        return cls(
            epoch=max((state.epoch for state in known), default=0),
            next_sequence=max((state.next_sequence for state in known), default=0),
            owner=max(owners, default=None),
        )

    def joined(self, other: FoundWriter) -> FoundWriter:
        """Returns what two tablets know."""
        return FoundWriter(
            epoch=max(self.epoch, other.epoch),
            next_sequence=max(self.next_sequence, other.next_sequence),
            owner=max((each.owner for each in (self, other) if each.owner is not None), default=None),
        )

    @property
    def owner_after_opening(self) -> str | None:
        """Its principal once the current call has opened it."""
        if not self.epoch:
            return new_owner() or None
        # Anyone may take over a writer that has no owner, so that makes nobody its owner.
        return self.owner if self.owner is not None else "" if current_principal() else None
