"""The public names of `aio_client`: names are added here on purpose, and never renamed."""

from __future__ import annotations

import aio_client
from scankv.model import errors

NAMES = [
    "BackupFailed",
    "BackupStatus",
    "BaseStatistics",
    "BucketCheck",
    "BucketStatistics",
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
    "IndexCheck",
    "IndexStatus",
    "InternalError",
    "InvalidKey",
    "InvalidOption",
    "InvalidRequest",
    "InvalidResumeToken",
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
    "ScanStatistics",
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
    "SnapshotLost",
    "SnapshotNotTaken",
    "StartFrom",
    "StopAt",
    "Table",
    "TableBases",
    "TableExists",
    "TableNotFound",
    "TableRecreated",
    "Tls",
    "TlsHandshakeFailed",
    "TokenEnv",
    "TokenFile",
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


def test_the_exported_names_are_these() -> None:
    assert sorted(aio_client.__all__) == NAMES
    assert all(hasattr(aio_client, name) for name in NAMES)


def test_the_sync_module_exports_the_same_shapes() -> None:
    assert sorted(aio_client.sync.__all__) == [
        "Client",
        "ColumnLock",
        "Scan",
        "ScanStream",
        "Snapshot",
        "Table",
        "TopNWatch",
        "Transaction",
        "TransactionPart",
        "Writer",
        "connect",
    ]


def test_every_error_of_the_tree_is_exported() -> None:
    tree = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert tree <= set(aio_client.__all__)


def test_the_sync_shapes_have_every_public_method_of_the_asynchronous_ones() -> None:
    for name in aio_client.sync.__all__[:-1]:
        asynchronous, blocking = getattr(aio_client, name), getattr(aio_client.sync, name)
        expected = {member for member in dir(asynchronous) if not member.startswith("_")} - {"aclose"}
        assert expected <= set(dir(blocking)), name
