"""A pinned snapshot for code that blocks; part of `aio_client.sync`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Self

from aio_client._lease import Keeper
from table_model.errors import UsageError

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType

    import pyarrow as pa

    from aio_client._runner import Runner
    from aio_client._snapshot import Snapshot as AsyncSnapshot
    from table_model.log_offsets import LogOffsets


class Snapshot:
    """A pinned snapshot, taken already. Thread-safe. In `with` it is renewed, and released at the end.

    Made by `Table.snapshot` and `Client.snapshots`. See `aio_client.Snapshot`.
    """

    def __init__(self, runner: Runner, snapshot: AsyncSnapshot) -> None:
        """Called by the methods of `Table` and `Client`."""
        self._runner = runner
        self._snapshot = snapshot
        self._keeper: Keeper | None = None

    def __enter__(self) -> Self:
        self._keeper = self._runner.call(_keep, self._snapshot)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._keeper is not None
        # A client closed meanwhile has ended the renewals; the lease expires by itself.
        with suppress(UsageError):
            self._runner.call(self._keeper.aclose)

    def __repr__(self) -> str:
        return f"<sync {repr(self._snapshot)[1:]}"

    @property
    def id(self) -> str:
        """What scans, renewals and the release name: the id of the lease."""
        return self._snapshot.id

    @property
    def view_id(self) -> str:
        """Names the view; the same for all leases that share one."""
        return self._snapshot.view_id

    @property
    def table(self) -> str:
        """The table, as `database.table`."""
        return self._snapshot.table

    @property
    def log_offsets(self) -> LogOffsets:
        """For every bucket, the offset of the first change that is not in the view."""
        return self._snapshot.log_offsets

    @property
    def schema(self) -> pa.Schema:
        """The table's columns as of the pin."""
        return self._snapshot.schema

    @property
    def schema_id(self) -> int:
        """The version of these columns: grows by one with every change of the table's."""
        return self._snapshot.schema_id

    @property
    def rows(self) -> int | None:
        """Rows in the view, exact. None: not counted, as in `BucketStatistics`; counting the snapshot reads them."""
        return self._snapshot.rows

    @property
    def taken_at(self) -> datetime:
        """When the view was taken, by the server's clock, in UTC."""
        return self._snapshot.taken_at

    @property
    def held_seconds(self) -> float:
        """For how long the table's writers were held to take the view; 0 where it was there already, or was listed."""
        return self._snapshot.held_seconds

    @property
    def ttl(self) -> float:
        """Seconds that the lease lives without being renewed."""
        return self._snapshot.ttl

    @property
    def remaining(self) -> float:
        """Seconds that the lease has left, reckoned from the server's last answer to this object; 0 when it is over."""
        return self._snapshot.remaining

    def renew(self, ttl: float | None = None) -> None:
        """Begins the lease's time to live anew. See `aio_client.Snapshot.renew`."""
        self._runner.call(self._snapshot.renew, ttl)

    def release(self) -> None:
        """Gives the lease back. Idempotent."""
        self._runner.call(self._snapshot.release)


async def _keep(snapshot: AsyncSnapshot) -> Keeper:
    return Keeper(snapshot)
