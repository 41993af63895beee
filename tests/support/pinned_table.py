"""A table of one worker process with a pinned snapshot, and connections to all workers of its server."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from aio_client import sync
from scankv.v1 import scan_pb2
from tests.support.tables import SCORES
from tests.support.wire import Wire
from tests.support.workers import names_of_workers, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess

WORKERS = 2
SECONDS = 60.0
ROWS = 3000
WIDE = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])


class PinnedTable:
    """A table with a snapshot, and a connection to each worker.

    Attributes:
        table: The table, which worker 0 owns.
        snapshot: Its snapshot.
        wires: The connections to the workers, by number.
    """

    def __init__(
        self, client: sync.Client, name: str, stack: ExitStack, schema: pa.Schema = SCORES, workers: int = WORKERS
    ) -> None:
        self.table = client.create_table(name, schema, primary_key=schema.names[:1], buckets=3)
        self.table.upsert(rows_of(ROWS) if schema is SCORES else wide_rows())
        self.snapshot = self.table.snapshot(ttl=300)
        first = self.table.owner_port
        self.wires = [stack.enter_context(Wire(f"127.0.0.1:{first + number}")) for number in range(workers)]

    def request(self, **fields: Any) -> scan_pb2.ScanKvRequest:
        """Returns a scan of the snapshot."""
        pinned = scan_pb2.PinnedSnapshot(snapshot_id=self.snapshot.id)
        return scan_pb2.ScanKvRequest(table=self.table.name, snapshot=pinned, **fields)

    def scan(self, number: int, **fields: Any) -> Any:
        """Starts a scan of the snapshot at a worker."""
        return self.wires[number].scans.ScanKv(self.request(**fields), timeout=SECONDS)


def wide_rows() -> pa.Table:
    """Returns about 15 MB, which no connection has room for."""
    keys = list(range(ROWS))
    return pa.table({"k": keys, "v": [f"{key:x}".zfill(5000) for key in keys]}, WIDE)


@contextmanager
def pinned(
    server: ServerProcess, database: str, schema: pa.Schema = SCORES, workers: int = WORKERS
) -> Iterator[tuple[sync.Client, PinnedTable]]:
    """Gives a client, and a table of worker 0 with a snapshot."""
    with sync.connect(server.url) as client, ExitStack() as stack:
        yield client, PinnedTable(client, names_of_workers(workers, database)[0][0], stack, schema, workers)


def batches_of(messages: Any) -> list[bytes]:
    """Returns the rows of a stream, which has to be complete."""
    received = list(messages)
    assert received[-1].HasField("trailer")
    return [each.chunk.record_batch for each in received if each.HasField("chunk")]
