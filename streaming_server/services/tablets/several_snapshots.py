"""Snapshots of several tables, all taken at one instant: a lease on a view of each table.

Any worker takes them: it holds the tablets of all tables, and has their owners pin them. Afterwards, each of them is a
snapshot of one table like any other.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scankv.model.errors import InvalidRequest, SnapshotLost
from scankv.model.limits import MAX_PINNED_TABLES
from scankv.model.names import TableName
from scankv.v1 import snapshot_pb2
from streaming_server.engine.snapshots.leases import check_ttl
from streaming_server.engine.snapshots.part_ids import PartId
from streaming_server.services.tablets.joined_snapshots import join_parts
from streaming_server.services.tablets.owner_calls import OwnerCalls
from streaming_server.services.tablets.snapshots import (
    PENDING_MILLIS,
    UNDO_SECONDS,
    not_taken,
    pin_at_once,
    release_all,
    renew_all,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import grpc

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.services.forwarding import Workers


@dataclass(frozen=True, slots=True)
class _NewLease:
    """A lease to take: on a table without tablets, or on one tablet. Immutable."""

    definition: TableDefinition
    id: str
    is_first: bool


async def pin_tables(
    names: Sequence[str],
    ttl: float | None,
    workers: Workers,
    tables: Tables,
    context: grpc.aio.ServicerContext[Any, Any],
) -> snapshot_pb2.PinSnapshotsResponse:
    """Pins several tables as of one instant: see `SnapshotService.PinSnapshots`.

    Args:
        names: The tables.
        ttl: The time to live of each lease, in seconds. None: the default.
        workers: The workers of the server.
        tables: The tables and tablets of this worker.
        context: The call.
    """
    _check(names, ttl)
    leases = [lease for name in names for lease in _leases_of(tables.current_definition(name))]
    calls = OwnerCalls(workers, tables.clock, [each.definition for each in leases], context)
    ids = {number: each.id for number, each in enumerate(leases)}
    millis = round(1000 * (tables.snapshots.default_ttl if ttl is None else ttl))
    requests = {
        number: snapshot_pb2.PinSnapshotRequest(
            table=each.definition.name, lease_id=each.id, ttl_millis=min(millis, PENDING_MILLIS)
        )
        for number, each in enumerate(leases)
    }
    try:
        _, pause_micros = await pin_at_once(requests, calls)
        found = await renew_all(ids, millis, calls)
        firsts = {number: each.id for number, each in enumerate(leases) if each.is_first}
        found |= await renew_all(firsts, millis, calls, announces=True)
    except SnapshotLost as error:
        await asyncio.shield(release_all(ids, calls, within=UNDO_SECONDS))
        raise not_taken(names) from error
    except BaseException:
        await asyncio.shield(release_all(ids, calls, within=UNDO_SECONDS))
        raise
    pinned = _join(found)
    return snapshot_pb2.PinSnapshotsResponse(
        snapshots=[pinned[name] for name in names], write_pause_micros=pause_micros
    )


def _check(names: Sequence[str], ttl: float | None) -> None:
    """Raises InvalidRequest unless the tables can be pinned for a time to live."""
    if not 0 < len(names) <= MAX_PINNED_TABLES:
        raise InvalidRequest(f"tables must name 1 to {MAX_PINNED_TABLES} tables, not {len(names):,}")
    for name in names:
        TableName.parse(name)  # Raises for a tablet, which clients do not know.
    twice = next((name for name in names if list(names).count(name) > 1), None)
    if twice is not None:
        raise InvalidRequest(f"tables names {twice} twice: name each table once", table=twice)
    if ttl is not None:
        check_ttl(ttl)


def _leases_of(definition: TableDefinition) -> list[_NewLease]:
    """Returns the leases that a snapshot of a table takes."""
    snapshot_id = uuid.uuid4().hex
    if not definition.is_divided:
        return [_NewLease(definition, snapshot_id, is_first=False)]
    parts = PartId.new(snapshot_id, definition.tablets, shared=False).all_parts
    tablets = enumerate(definition.all_tablets)
    return [_NewLease(tablet, str(parts[number]), is_first=not number) for number, tablet in tablets]


def _join(found: dict[int, snapshot_pb2.Snapshot]) -> dict[str, snapshot_pb2.Snapshot]:
    """Returns the snapshots of tables, with parts joined, by table."""
    joined, parts = dict[str, snapshot_pb2.Snapshot](), dict[str, dict[int, snapshot_pb2.Snapshot]]()
    for each in found.values():
        part = PartId.parse(each.snapshot_id)
        if part is None:
            joined[each.table] = each
        else:
            parts.setdefault(each.table, {})[part.tablet] = each
    return joined | {table: join_parts(each) for table, each in parts.items()}
