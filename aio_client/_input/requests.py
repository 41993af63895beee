"""Divides rows into requests: small enough for the server, and large enough that few are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from scankv.model.errors import RequestTooLarge
from scankv.model.limits import MAX_ROW_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

REQUEST_BYTES: Final = 8 * 1024 * 1024
"""The size at which a request is sent, a quarter of what a server takes."""

REQUEST_ROWS: Final = 100_000
"""The most rows of a request, so that small rows are acknowledged at intervals as well."""

LOOKUP_KEYS: Final = 10_000
"""The most keys of a lookup. Its answer is also limited in bytes."""


def cut(
    batches: Iterable[pa.RecordBatch], *, max_rows: int = REQUEST_ROWS, max_bytes: int = REQUEST_BYTES
) -> Iterator[pa.RecordBatch]:
    """Cuts and joins batches of one schema into batches of one request each, in order and without empty ones.

    A row over `max_bytes` is a batch of its own.

    Raises:
        RequestTooLarge: A row is over 16 MiB; the message has its index.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = first_row = 0
    for batch in batches:
        for piece in _pieces(batch, first_row, max_rows, max_bytes):
            if waiting and (rows + piece.num_rows > max_rows or size + piece.nbytes > max_bytes):
                yield _join(waiting)
                waiting, rows, size = [], 0, 0
            waiting.append(piece)
            rows += piece.num_rows
            size += piece.nbytes
        first_row += batch.num_rows
    if waiting:
        yield _join(waiting)


def divide(batches: Iterator[pa.RecordBatch], counts: Iterable[int]) -> Iterator[pa.RecordBatch]:
    """Divides batches of one schema into batches with given positive numbers of rows, and passes the rest through.

    The last batch has fewer rows if they end early.
    """
    left: pa.RecordBatch | None = None
    for count in counts:
        pieces, missing = [], count
        while missing and (batch := next(batches, None) if left is None else left) is not None:
            pieces.append(batch.slice(0, missing))
            left = batch.slice(missing) if batch.num_rows > missing else None
            missing -= pieces[-1].num_rows
        if not pieces:
            return
        yield _join(pieces)
    if left is not None:
        yield left
    yield from batches


def to_ipc(batch: pa.RecordBatch) -> bytes:
    """Writes a batch as a complete Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _pieces(batch: pa.RecordBatch, first_row: int, max_rows: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Halves a batch until every piece fits. Sizes of rows differ, so dividing by an average would not work."""
    if batch.num_rows <= max_rows and batch.nbytes <= max_bytes:
        if batch.num_rows:
            yield batch
        return
    if batch.num_rows == 1:
        if batch.nbytes > MAX_ROW_BYTES:
            raise RequestTooLarge(
                f"row {first_row} has {batch.nbytes:,} bytes; the limit is {MAX_ROW_BYTES:,}", row=first_row
            )
        yield batch
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half), first_row, max_rows, max_bytes)
    yield from _pieces(batch.slice(half), first_row + half, max_rows, max_bytes)


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Joins batches to one, because each batch in a message costs a frame of its own."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
