"""The asyncio client of ScanKV: `connect`, tables, and scans as streams of Arrow batches.

    async with connect("localhost:7070") as client:
        table = await client.table("game.scores")
        async for rows in table.scan().stream():  # rows: pyarrow.RecordBatch
            ...

Every error is a `ScanKvError`. `scankv.sync` is the same client for blocking code.
"""

from typing import TYPE_CHECKING, Any, Final

from aio_client._admin.admin import LiveScan, ServerStats, SlowCall
from aio_client._admin.backups import BackupStatus
from aio_client._admin.bases import BaseStats, TableBases
from aio_client._admin.check import BucketCheck, IndexCheck
from aio_client._admin.damaged_table import DamagedTable
from aio_client._admin.disk_use import DiskUse
from aio_client._admin.indexes import IndexStatus
from aio_client._admin.owners import AssignedOwner
from aio_client._admin.partitions import PartitionInfo
from aio_client._admin.table_sizes import TableSize
from aio_client._admin.table_stats import BucketStats
from aio_client._client.bootstrap import BootstrapProgress
from aio_client._client.client import Client
from aio_client._client.connect import connect
from aio_client._client.table import Table
from aio_client._client.transaction import Transaction
from aio_client._client.transaction_info import CommitResult, JobStep, LostWrites, TransactionInfo
from aio_client._client.transaction_part import TransactionPart
from aio_client._integrations.blocking_stream import BlockingStream, register_opener
from aio_client._queries.lookup import VersionedRows
from aio_client._queries.versioned import Versioned
from aio_client._queries.watch import TopN, TopNWatch
from aio_client._scan.cleared_range import ClearedRange
from aio_client._scan.consumers import Consumer
from aio_client._scan.explanation import ScanExplanation
from aio_client._scan.resume import Resumption
from aio_client._scan.scan import Scan
from aio_client._scan.snapshot import Snapshot
from aio_client._scan.snapshot_group import SnapshotGroup
from aio_client._scan.stream import ScanStats, ScanStream
from aio_client._transport.config import ClientConfig
from aio_client._transport.tls import Tls
from aio_client._transport.tokens import TokenEnv, TokenFile
from aio_client._write.column_locks import ColumnLock
from aio_client._write.write_requests import UndoReport, WriteResult
from aio_client._write.writer import Writer
from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.changes.log_positions import ScanSource, StartFrom, StopAt
from scankv.model.errors import (
    BackupFailed,
    BootstrapDiffers,
    BootstrapLost,
    ColumnLocked,
    ConnectionFailed,
    ConsumerFenced,
    ConsumerNotFound,
    DataLoss,
    DeadlineExceeded,
    DeadlockDetected,
    DiskFailed,
    DiskFull,
    DuplicateKeys,
    InternalError,
    InvalidKey,
    InvalidOption,
    InvalidRequest,
    InvalidResumeToken,
    LakeConflict,
    LakeDamaged,
    LakeError,
    LakeUnavailable,
    LakeVersionNotFound,
    LockLost,
    LockTimeout,
    NewerFormat,
    NoPrimaryKey,
    NotOwner,
    PermissionDenied,
    PositionExpired,
    PositionOutOfRange,
    ProtocolViolation,
    RangeNotTracked,
    RequestTooLarge,
    ScanCancelled,
    ScanInterrupted,
    ScanKvError,
    ScanNotFound,
    ScanStalled,
    ScanTooLong,
    SchemaMismatch,
    ServerBusy,
    ServerDraining,
    ServerRefused,
    SnapshotExists,
    SnapshotLost,
    SnapshotNotTaken,
    TableExists,
    TableNotFound,
    TableRecreated,
    TlsHandshakeFailed,
    TooManyBootstraps,
    TooManyConsumers,
    TooManyLocks,
    TooManyScans,
    TooManySnapshots,
    TooManyTransactions,
    TooManyWriters,
    TransactionCommitted,
    TransactionConflict,
    TransactionLost,
    Unauthenticated,
    Unavailable,
    UndoConflict,
    UnknownCall,
    UnknownField,
    UpgradeNotConfirmed,
    UsageError,
    WriteConflict,
    WriterExpired,
    WriterFenced,
)
from scankv.model.expressions import Column, Predicate, col
from scankv.model.public_names import set_public_module
from scankv.model.scans.scan_spec import Resume, ScanSpec
from scankv.model.tables import agg

if TYPE_CHECKING:
    from aio_client import sync
    from aio_client._integrations.arrow_dataset import TableDataset
    from aio_client._sql.explanation import SqlExplanation
    from aio_client._sql.query import SqlQuery
    from aio_client._sql.result import SqlResult

__all__ = [
    "AssignedOwner",
    "BackupFailed",
    "BackupStatus",
    "BaseStats",
    "BootstrapDiffers",
    "BootstrapLost",
    "BootstrapProgress",
    "BucketCheck",
    "BucketStats",
    "ClearedRange",
    "Client",
    "ClientConfig",
    "Column",
    "ColumnLock",
    "ColumnLocked",
    "CommitResult",
    "ConnectionFailed",
    "Consumer",
    "ConsumerFenced",
    "ConsumerNotFound",
    "DamagedTable",
    "DataLoss",
    "DeadlineExceeded",
    "DeadlockDetected",
    "DiskFailed",
    "DiskFull",
    "DiskUse",
    "DuplicateKeys",
    "IndexCheck",
    "IndexStatus",
    "InternalError",
    "InvalidKey",
    "InvalidOption",
    "InvalidRequest",
    "InvalidResumeToken",
    "JobStep",
    "LakeConflict",
    "LakeDamaged",
    "LakeError",
    "LakeUnavailable",
    "LakeVersionNotFound",
    "LiveScan",
    "LockLost",
    "LockTimeout",
    "LogOffsets",
    "LostWrites",
    "NewerFormat",
    "NoPrimaryKey",
    "NotOwner",
    "PartitionInfo",
    "PermissionDenied",
    "PositionExpired",
    "PositionOutOfRange",
    "Predicate",
    "ProtocolViolation",
    "RangeNotTracked",
    "RequestTooLarge",
    "Resume",
    "Resumption",
    "Scan",
    "ScanCancelled",
    "ScanExplanation",
    "ScanInterrupted",
    "ScanKvError",
    "ScanNotFound",
    "ScanSource",
    "ScanSpec",
    "ScanStalled",
    "ScanStats",
    "ScanStream",
    "ScanTooLong",
    "SchemaMismatch",
    "ServerBusy",
    "ServerDraining",
    "ServerRefused",
    "ServerStats",
    "SlowCall",
    "Snapshot",
    "SnapshotExists",
    "SnapshotGroup",
    "SnapshotLost",
    "SnapshotNotTaken",
    "SqlExplanation",
    "SqlQuery",
    "SqlResult",
    "StartFrom",
    "StopAt",
    "Table",
    "TableBases",
    "TableDataset",
    "TableExists",
    "TableNotFound",
    "TableRecreated",
    "TableSize",
    "Tls",
    "TlsHandshakeFailed",
    "TokenEnv",
    "TokenFile",
    "TooManyBootstraps",
    "TooManyConsumers",
    "TooManyLocks",
    "TooManyScans",
    "TooManySnapshots",
    "TooManyTransactions",
    "TooManyWriters",
    "TopN",
    "TopNWatch",
    "Transaction",
    "TransactionCommitted",
    "TransactionConflict",
    "TransactionInfo",
    "TransactionLost",
    "TransactionPart",
    "Unauthenticated",
    "Unavailable",
    "UndoConflict",
    "UndoReport",
    "UnknownCall",
    "UnknownField",
    "UpgradeNotConfirmed",
    "UsageError",
    "Versioned",
    "VersionedRows",
    "WriteConflict",
    "WriteResult",
    "Writer",
    "WriterExpired",
    "WriterFenced",
    "agg",
    "col",
    "connect",
    "sync",
]

_ON_USE: Final = {
    **dict.fromkeys(("SqlExplanation", "SqlQuery", "SqlResult"), "aio_client._sql.query"),
    "TableDataset": "aio_client._integrations.arrow_dataset",
}
"""The names that few programs use, and their modules."""

set_public_module("scankv", globals(), set(__all__) - {"sync", *_ON_USE})


def _open_blocking_stream(config: ClientConfig, spec: ScanSpec) -> BlockingStream:
    from aio_client._sync.stream import stream_once

    return stream_once(config, spec)


register_opener(_open_blocking_stream)


def __getattr__(name: str) -> Any:  # noqa: ANN401  # a module, or a class
    """Imports `scankv.sync` on first use, because it takes a quarter of the time that importing everything takes."""
    from importlib import import_module

    if name == "sync":
        return import_module("aio_client.sync")
    if name in _ON_USE:
        return getattr(import_module(_ON_USE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
