"""The asyncio client of ScanKV: `connect`, tables, and scans as streams of Arrow batches.

    async with connect("localhost:7070") as client:
        table = await client.table("game.scores")
        async for rows in table.scan().stream():  # rows: pyarrow.RecordBatch
            ...

Every error is a `ScanKvError`. `aio_client.sync` is the same for code that blocks.
"""

from aio_client import sync
from aio_client._admin import LiveScan, ServerStats
from aio_client._client import Client, connect
from aio_client._config import ClientConfig
from aio_client._explanation import ScanExplanation
from aio_client._resume import Resumption
from aio_client._scan import Scan
from aio_client._snapshot import Snapshot
from aio_client._stream import ScanStatistics, ScanStream
from aio_client._table import BucketStatistics, Table, WriteResult
from table_model.errors import (
    ConnectionFailed,
    DataLoss,
    DeadlineExceeded,
    InternalError,
    InvalidKey,
    InvalidOption,
    InvalidRequest,
    InvalidResumeToken,
    ProtocolViolation,
    RequestTooLarge,
    ScanCancelled,
    ScanInterrupted,
    ScanKvError,
    ScanNotFound,
    ScanStalled,
    ScanTooLong,
    SchemaMismatch,
    ServerDraining,
    ServerRefused,
    SnapshotLost,
    SnapshotNotTaken,
    TableExists,
    TableNotFound,
    TooManyScans,
    TooManySnapshots,
    Unavailable,
    UnknownField,
    UsageError,
)
from table_model.expressions import Column, Predicate, col
from table_model.scan_spec import Resume, ScanSpec

__all__ = [
    "BucketStatistics",
    "Client",
    "ClientConfig",
    "Column",
    "ConnectionFailed",
    "DataLoss",
    "DeadlineExceeded",
    "InternalError",
    "InvalidKey",
    "InvalidOption",
    "InvalidRequest",
    "InvalidResumeToken",
    "LiveScan",
    "Predicate",
    "ProtocolViolation",
    "RequestTooLarge",
    "Resume",
    "Resumption",
    "Scan",
    "ScanCancelled",
    "ScanExplanation",
    "ScanInterrupted",
    "ScanKvError",
    "ScanNotFound",
    "ScanSpec",
    "ScanStalled",
    "ScanStatistics",
    "ScanStream",
    "ScanTooLong",
    "SchemaMismatch",
    "ServerDraining",
    "ServerRefused",
    "ServerStats",
    "Snapshot",
    "SnapshotLost",
    "SnapshotNotTaken",
    "Table",
    "TableExists",
    "TableNotFound",
    "TooManyScans",
    "TooManySnapshots",
    "Unavailable",
    "UnknownField",
    "UsageError",
    "WriteResult",
    "col",
    "connect",
    "sync",
]
