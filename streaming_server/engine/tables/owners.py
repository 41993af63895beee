"""Gives what belongs to one principal to another one, by the command of an admin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scankv.model.names import check_principal

if TYPE_CHECKING:
    from streaming_server.engine.changelog.consumer_registry import ConsumerRegistry
    from streaming_server.engine.snapshots.snapshots import Snapshots
    from streaming_server.engine.table.live_table import LiveTable


@dataclass(frozen=True, slots=True)
class AssignedThings:
    """What has another owner now: the numbers of snapshots, consumers and column locks, and the ids of writers."""

    snapshots: int
    consumers: int
    locks: int
    writers: frozenset[str]


async def assign_owner(
    table: LiveTable, snapshots: Snapshots, consumers: ConsumerRegistry, before: str, principal: str
) -> AssignedThings:
    """Gives the snapshots, consumers, column locks and writers of a table that belong to a principal to another one.

    Durable when this returns. Transactions are left as they are: they end soon anyway.

    Args:
        table: The table, or a tablet of it.
        snapshots: The snapshots of the server.
        consumers: The consumers of the server.
        before: The principal to whom they belong. Empty: nobody.
        principal: The principal to whom they will belong.

    Raises:
        InvalidRequest: The name of a principal is not allowed.
        TooManySnapshots, TooManyConsumers: The caller, who is no admin of every table, may not give the principal so
            many. Nothing is given.
        DataLoss: A bucket is damaged.
    """
    check_principal(principal)
    snapshots.check_assignment(table.definition.name, before, principal)
    consumers.check_assignment(table.state, before, principal)
    return AssignedThings(
        snapshots=await snapshots.assign(table.definition.name, before, principal),
        consumers=await consumers.assign(table.state, before, principal),
        locks=await table.writes.locks.assign(before, principal),
        writers=await table.writes.assign_writers(before, principal),
    )
