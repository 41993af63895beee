"""Owners of what principals hold of a table: giving it to another principal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from aio_client._input.arguments import text_of
from scankv.v1 import admin_pb2

if TYPE_CHECKING:
    from aio_client._transport.transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedOwner:
    """What belongs to another principal since a call of `client.assign_owner`.

    Attributes:
        snapshots: The number of snapshots.
        consumers: The number of consumers.
        column_locks: The number of column locks.
        writers: The ids of the writers, ascending.
    """

    snapshots: int
    consumers: int
    column_locks: int
    writers: tuple[str, ...]

    @classmethod
    def of(cls, message: admin_pb2.AssignOwnerResponse) -> Self:
        """Decodes an answer."""
        return cls(
            snapshots=message.snapshots,
            consumers=message.consumers,
            column_locks=message.column_locks,
            writers=tuple(message.writers),
        )


async def assign_owner(transport: Transport, table: str, principal: str, current: str | None) -> AssignedOwner:
    """Makes the call of `Client.assign_owner`."""
    request = admin_pb2.AssignOwnerRequest(
        table=text_of(table, "table"),
        principal=text_of(principal, "principal"),
        current="" if current is None else text_of(current, "current"),
    )
    return AssignedOwner.of(await transport.call(lambda: transport.services.admin.AssignOwner, request))
