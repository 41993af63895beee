"""Joins the answers to lookup requests into one table, in the order of the keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from aio_client._transport.retry import with_retries
from scankv.model import lazy_compute as pc
from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.counts import counted
from scankv.model.errors import ProtocolViolation, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import numpy.typing as npt

    from scankv.v1.lookup_pb2 import LookupResponse


@dataclass(frozen=True, slots=True)
class VersionedRows:
    """Rows that were looked up, and the log offsets that they are as of.

    Attributes:
        rows: The rows.
        log_offsets: For every bucket of a key, even a key without a row, the offset of the first change that the rows
            do not show.
    """

    rows: pa.Table
    log_offsets: LogOffsets

    def _repr_html_(self) -> str:
        from aio_client._input.notebooks import html_of_rows

        return html_of_rows(f"{type(self).__name__} of {counted(self.rows.num_rows, 'row')}", self.rows)


@dataclass(frozen=True, slots=True)
class LookupAnswer:
    """The server's answer to one request.

    Attributes:
        keys: The keys of the request.
        rows: The rows found, in the order of their keys.
        found: For every key, whether it has a row.
        log_offsets: For every bucket of a key, the offset of the first change that the rows do not show.
        columns: The incarnation of the table and the id of the schema that the rows have.
    """

    keys: pa.RecordBatch
    rows: pa.Table
    found: npt.NDArray[np.bool_]
    log_offsets: LogOffsets
    columns: tuple[str, int]

    @classmethod
    def decode(cls, keys: pa.RecordBatch, response: LookupResponse) -> LookupAnswer:
        """Decodes the response to a request for these keys.

        Raises:
            ProtocolViolation: The rows are not Arrow data, or the response does not say for every key whether it was
                found.
        """
        try:
            rows = pa.ipc.open_stream(response.rows).read_all()
        except (pa.ArrowException, OSError) as error:
            raise ProtocolViolation("the server answered a lookup with something that is not Arrow data") from error
        found = np.frombuffer(response.found, np.bool_)
        if len(found) != keys.num_rows or found.sum() != rows.num_rows:
            raise ProtocolViolation(
                f"the server answered a lookup of {counted(keys.num_rows, 'key')} for {counted(len(found), 'key')}, "
                f"with {counted(rows.num_rows, 'row')} where it says {found.sum():,}"
            )
        offsets = LogOffsets()
        offsets.advance(response.log_offsets, response.table_incarnation)
        return cls(keys, rows, found, offsets, (response.table_incarnation, response.schema_id))

    def split(self, lengths: Sequence[int]) -> list[LookupAnswer]:
        """Splits the answer for several calls, by the number of keys of each call. The parts have no log offsets."""
        parts, start, first = [], 0, 0
        for length in lengths:
            found = self.found[start : start + length]
            end = first + int(found.sum())
            # Copies, because a slice would keep the rows of all calls in memory.
            rows = self.rows if len(lengths) == 1 else self.rows.take(np.arange(first, end))
            parts.append(LookupAnswer(self.keys.slice(start, length), rows, found, LogOffsets(), self.columns))
            start, first = start + length, end
        return parts


async def look_up_pieces(
    find: Callable[[pa.RecordBatch], Awaitable[Sequence[LookupAnswer]]],
    pieces: Sequence[pa.RecordBatch],
    table: str,
    timeout: float,
) -> list[LookupAnswer]:
    """Looks up keys in several requests, and begins again if the table was altered between them.

    Args:
        find: Looks up the keys of one request.
        pieces: The keys of each request.
        table: The name of the table.
        timeout: For how many seconds a lookup may begin again.

    Raises:
        Unavailable: The table was altered, or created again, in each of the attempts.
        ScanKvError: As for `find`.
    """

    async def attempt(_: float) -> list[LookupAnswer]:
        answers = [answer for piece in pieces for answer in await find(piece)]
        if len({answer.columns for answer in answers}) > 1:
            raise _ColumnsDifferError(f"table {table} was altered while its rows were looked up: try again")
        return answers

    return await with_retries(attempt, timeout=timeout, retries=lambda error: isinstance(error, _ColumnsDifferError))


class _ColumnsDifferError(Unavailable):
    """The answers to the requests of one lookup have columns of different versions of the table."""


def join_answers(answers: Sequence[LookupAnswer], schema: pa.Schema, *, fill_missing: bool) -> pa.Table:
    """Joins answers in order.

    Args:
        answers: The answers. From a server of version 0.1.0, later answers may have more columns than earlier ones.
        schema: The columns of the result if there is no answer.
        fill_missing: Whether a key without a row gets a row that is null except for the key.
    """
    if not answers:
        return schema.empty_table()
    tables = [_fill_missing(answer) if fill_missing else answer.rows for answer in answers]
    return pa.concat_tables(tables, promote_options="default")


def oldest_offsets(answers: Sequence[LookupAnswer]) -> LogOffsets:
    """Returns the least offset of each bucket in all answers, with the table incarnation of the first answer."""
    offsets = LogOffsets()
    offsets.table_incarnation = answers[0].log_offsets.table_incarnation if answers else ""
    for answer in answers:
        for bucket, offset in answer.log_offsets.items():
            offsets[bucket] = min(offset, offsets.get(bucket, offset))
    return offsets


def _fill_missing(answer: LookupAnswer) -> pa.Table:
    positions = pa.array(np.cumsum(answer.found) - 1, mask=~answer.found)
    rows = answer.rows.take(positions)
    keys = dict(zip(answer.keys.schema.names, answer.keys.columns, strict=True))
    columns = [
        pc.coalesce(column, keys[name]) if name in keys else column
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    ]
    fields = [field if field.name in keys else field.with_nullable(True) for field in rows.schema]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))
