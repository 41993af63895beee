"""What a scan asks for, as plain values: without a connection, so that it can be kept, compared and sent elsewhere."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from table_model.errors import InvalidRequest, UsageError
from table_model.limits import (
    MAX_BUCKETS,
    MAX_CHUNK_BYTES,
    MAX_CHUNK_ROWS,
    MIN_CHUNK_BYTES,
    MIN_CHUNK_ROWS,
)
from table_model.names import TableName
from table_model.types import first_repeated

_MAX_LIMIT = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ScanSpec:
    """A scan of one table. Immutable, hashable, picklable.

    Attributes:
        table: `database.table`.
        columns: The columns to return, in this order, each once. None: all. Empty: rows without columns, for counting.
        limit: The most rows, over all buckets together. None: no limit. 0 gives schema and log offsets only.
        buckets: The buckets to read, each once. None: all.
        chunk_rows: The most rows of a chunk, 1 to 65,536. None: the server's default.
        chunk_bytes: The most bytes of stored rows in a chunk, 1 KiB to 16 MiB. None: the server's default.
    """

    table: str
    _: KW_ONLY
    columns: tuple[str, ...] | None = None
    limit: int | None = None
    buckets: tuple[int, ...] | None = None
    chunk_rows: int | None = None
    chunk_bytes: int | None = None

    def __post_init__(self) -> None:
        """Raises UsageError for a value that no scan can have, naming the field and its range."""
        try:
            TableName.parse(self.table)
        except InvalidRequest as error:
            raise UsageError(error.message, table=self.table) from error
        if self.columns is not None:
            _check_columns(self.columns)
        if self.buckets is not None:
            _check_buckets(self.buckets)
        _check_range("limit", self.limit, 0, _MAX_LIMIT)
        _check_range("chunk_rows", self.chunk_rows, MIN_CHUNK_ROWS, MAX_CHUNK_ROWS)
        _check_range("chunk_bytes", self.chunk_bytes, MIN_CHUNK_BYTES, MAX_CHUNK_BYTES)


def _check_columns(columns: tuple[str, ...]) -> None:
    if not isinstance(columns, tuple) or not all(isinstance(name, str) for name in columns):
        raise UsageError(f"columns must be a tuple of column names, not {columns!r}")
    twice = first_repeated(columns)
    if twice is not None:
        raise UsageError(f'column "{twice}" is selected twice', column=twice)


def _check_buckets(buckets: tuple[int, ...]) -> None:
    if not isinstance(buckets, tuple) or not buckets:
        raise UsageError(f"buckets must be a tuple of at least one bucket number, or None for all, not {buckets!r}")
    for bucket in buckets:
        _check_range("a bucket number", bucket, 0, MAX_BUCKETS - 1)
    if len(set(buckets)) < len(buckets):
        raise UsageError(f"a bucket is named twice in {buckets}")


def _check_range(what: str, value: int | None, low: int, high: int) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise UsageError(f"{what} must be a whole number from {low:,} to {high:,}, not {value!r}")
