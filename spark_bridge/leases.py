"""Who keeps the snapshot that the tasks of a job read: the rules of its lease.

Spark says nobody that a job has ended, and a DataFrame keeps its plan, and so its snapshot, for all of its actions. So
the plan takes a lease for `snapshot_ttl`, and its tasks do the rest:

- a task that begins renews it, and while it reads it goes on renewing it, on behalf of those that have no slot yet;
- a task that has read its part to the end says so to the server. With the last part the lease drops to a minute, so
  that a hundred `count()`s keep a hundred leases for a minute only;
- a later action of the same DataFrame finds the snapshot while it is there, and its tasks renew it again.

A job that fails, or has enough before it has read everything, leaves the lease to expire. A snapshot that the user
named is the user's: nothing of this happens to it.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from table_model.errors import ScanKvError, SnapshotLost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aio_client import Client, Snapshot
    from spark_bridge.planning import ScanPart

FINISHED_TTL: Final = 60.0
"""Seconds that a lease lives on when all parts were read."""

# Well below FINISHED_TTL: the lease may have dropped to it while a task of a later action was reading.
_MOST_SECONDS_BETWEEN_RENEWALS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Lease:
    """What a task knows of the lease that its job's plan has taken. Picklable.

    Attributes:
        snapshot_id: The lease.
        ttl: Seconds that it lives without being renewed.
        of_stream: Whether a streaming query begins with the snapshot: it is released once all of it was committed, and
            not shortened before.
    """

    snapshot_id: str
    ttl: float
    of_stream: bool = False


@asynccontextmanager
async def kept(client: Client, part: ScanPart) -> AsyncIterator[Snapshot | None]:
    """The snapshot that a part is of, renewed now and during the block; None where that is not ours to do.

    Raises:
        SnapshotLost: It is gone.
    """
    if part.lease is None:
        yield None
        return
    snapshot = await client.adopt_snapshot(part.lease.snapshot_id, part.lease.ttl)
    renewals = asyncio.create_task(_renew(snapshot, part.lease.ttl), name=f"renewal of snapshot {snapshot.id}")
    try:
        yield snapshot
    finally:
        renewals.cancel()
        await asyncio.wait([renewals])


async def finish(snapshot: Snapshot, part: ScanPart) -> None:
    """Says that a part was read to its end. A failure is no harm: the lease then expires as one that is not renewed."""
    assert part.lease is not None
    if part.lease.of_stream:
        return
    with suppress(ScanKvError):
        await snapshot.finish_part(part.number, part.count, min(FINISHED_TTL, part.lease.ttl))


def expired(part: ScanPart) -> SnapshotLost:
    """The error of a task that finds its snapshot gone."""
    if part.lease is None:
        return SnapshotLost(
            f"the snapshot {part.spec.snapshot_id} of table {part.spec.table}, which option snapshot names, is gone: "
            "take another one, and load() again",
            table=part.spec.table,
        )
    if part.lease.of_stream:
        return stream_expired(part.spec.table)
    return SnapshotLost(
        f"the snapshot of table {part.spec.table} that this DataFrame reads has expired: nothing has read it for "
        "longer than its lease lives. load() again for the table as it is now; option snapshot_ttl gives the next one "
        f"more than {part.lease.ttl:g} seconds",
        table=part.spec.table,
    )


def stream_expired(table: str) -> SnapshotLost:
    """The error of a streaming query that finds the snapshot gone which it has not read to its end."""
    return SnapshotLost(
        f"the snapshot of table {table} that this query begins with has expired: it did not run for longer than "
        "option snapshot_ttl says. Start it with a new checkpoint, and what it has written before removed",
        table=table,
    )


async def _renew(snapshot: Snapshot, ttl: float) -> None:
    """Renews until cancelled. Errors say nothing here: a scan that is reading goes on without its lease."""
    pause = min(ttl / 3, _MOST_SECONDS_BETWEEN_RENEWALS)
    while True:
        await asyncio.sleep(pause)
        with suppress(ScanKvError):
            await snapshot.renew(ttl)
