"""Gives what belongs to one principal to another one, by the command of an admin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scankv.model.names import check_principal

if TYPE_CHECKING:
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tables.tables import Tables


@dataclass(frozen=True, slots=True)
class AssignedThings:
    """What has another owner now: the numbers of snapshots, consumers and column locks, and the ids of writers."""

    snapshots: int
    consumers: int
    locks: int
    writers: frozenset[str]


async def assign_owner(tables: Tables, table: LiveTable, before: str, principal: str) -> AssignedThings:
    """Gives the snapshots, consumers, column locks and writers of a table that belong to a principal to another one.

    Durable when this returns. Transactions are left as they are: they end soon anyway.

    Args:
        tables: The tables of the server.
        table: The table, or a tablet of it.
        before: The principal to whom they belong. Empty: they have no owner.
        principal: The principal to whom they will belong.

    Raises:
        InvalidRequest, TooManySnapshots, TooManyConsumers: As `check_assignment`. Nothing is given.
        DataLoss: A bucket is damaged.
    """
    snapshots, consumers = tables.snapshots, tables.consumers
    # Otherwise two calls could together give more than each of them may.
    async with tables.assignments:
        check_assignment(tables, table, before, principal)
        given_snapshots = await snapshots.assign(table.definition.name, before, principal)
        given_consumers = await consumers.assign(table.state, before, principal)
    return AssignedThings(
        snapshots=given_snapshots,
        consumers=given_consumers,
        locks=await table.writes.locks.assign(before, principal),
        writers=await table.writes.assign_writers(before, principal),
    )


def check_assignment(tables: Tables, table: LiveTable, before: str, principal: str) -> None:
    """Checks whether the caller may assign what `assign_owner` would give now. Arguments as there.

    Raises:
        InvalidRequest: The name of a principal is not allowed.
        TooManySnapshots, TooManyConsumers: The caller, who is no admin of every table, may not give the principal so
            many.
    """
    check_principal(principal)
    tables.snapshots.check_assignment(table.definition.name, before, principal)
    tables.consumers.check_assignment(table.state, before, principal)
