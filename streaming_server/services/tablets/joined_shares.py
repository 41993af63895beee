"""Joins the shares of tablets into the results of queries. Pure, and exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.limits import MAX_TOP_N
from scankv.v1 import lookup_pb2
from streaming_server.arrays.sort_codes import sort_codes
from streaming_server.scan.framing import frame_answer
from streaming_server.scan.queries.top_n import MAX_KEPT_BYTES, too_large, too_many_ties
from streaming_server.services.lookup import ipc_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from scankv.model.errors import ScanKvError
    from scankv.model.keys.key_codec import KeyCodec
    from scankv.v1 import worker_pb2
    from streaming_server.scan.queries.aggregation import Aggregation
    from streaming_server.scan.queries.top_n import TopNSpec


class JoinedCount:
    """Adds up the counts of tablets."""

    def __init__(self) -> None:
        self._rows = 0

    def add(self, share: worker_pb2.QueriedResult, state: bytes) -> None:
        """Adds the count of a tablet. `state` is empty."""
        self._rows += share.rows

    def respond(self, log_offsets: Mapping[int, int], version: bytes) -> tuple[bytes, bytes]:
        """Returns a serialized `CountResponse`, without further fields for the first caller."""
        response = lookup_pb2.CountResponse(rows=self._rows, log_offsets=log_offsets, version=version)
        return response.SerializeToString(), b""


class JoinedGroups:
    """Merges the groups of tablets. Memory: all groups, and the groups of one tablet.

    Floats are added in the order of the tablets, so two queries of one view have the same sums.

    Args:
        aggregation: An aggregation without rows.
    """

    def __init__(self, aggregation: Aggregation) -> None:
        self._aggregation = aggregation

    def add(self, share: worker_pb2.QueriedResult, state: bytes) -> None:
        """Adds the groups of a tablet, an Arrow IPC stream. Raises InvalidRequest for too many groups."""
        groups = pa.ipc.open_stream(pa.py_buffer(state)).read_all()
        self._aggregation.add_state(groups)

    def respond(self, log_offsets: Mapping[int, int], version: bytes) -> tuple[bytes, bytes]:
        """Returns a serialized `AggregateResponse`, without further fields for the first caller.

        Raises:
            InvalidRequest: A sum does not fit into its type.
            RequestTooLarge: The answer is too large.
        """
        response = lookup_pb2.AggregateResponse(log_offsets=log_offsets, version=version)
        return frame_answer(response, ipc_of(self._aggregation.result())), b""


class JoinedRows:
    """Finds the first rows of a table among the first rows of its tablets. Memory: these, and the rows of one tablet.

    Args:
        spec: The requested rows.
        keys: The codec of the keys.
    """

    def __init__(self, spec: TopNSpec, keys: KeyCodec) -> None:
        self._spec = spec
        self._keys = keys
        self._direction = "ascending" if spec.ascending else "descending"
        # The first rows, with `value`, the sort code of the column, and `key`, the encoded key.
        self._order: pa.Table | None = None
        self._rows: pa.Table | None = None
        self._scanned = 0
        self._indexes: set[tuple[str, ...]] = set()
        # Values with which more rows tie than were returned, and the error if such a value is the last one.
        self._dropped_ties: list[tuple[pa.Scalar, ScanKvError]] = []

    def add(self, share: worker_pb2.QueriedResult, state: bytes) -> None:
        """Adds the first rows of a tablet, an Arrow IPC stream."""
        self._scanned += share.rows_scanned
        self._indexes.add(tuple(share.index))
        rows = pa.ipc.open_stream(pa.py_buffer(state)).read_all().combine_chunks()
        columns = [self._array(rows, name) for name in self._keys.names]
        order = pa.table([sort_codes(self._array(rows, self._spec.by)), self._keys.encode(columns)], ["value", "key"])
        if share.has_too_many_ties:
            self._dropped_ties.append((order["value"][self._spec.n - 1], too_many_ties(self._spec)))
        if share.has_too_large_ties:
            self._dropped_ties.append((order["value"][self._spec.n - 1], too_large(self._spec.n, MAX_KEPT_BYTES)))
        if self._rows is not None and self._order is not None:
            rows, order = pa.concat_tables([self._rows, rows]), pa.concat_tables([self._order, order])
        sorted_ = pc.sort_indices(order, sort_keys=[("value", self._direction), ("key", "ascending")])
        kept = sorted_[: self._count(order["value"].take(sorted_))]
        self._rows, self._order = rows.take(kept), order.take(kept)

    @staticmethod
    def _array(rows: pa.Table, name: str) -> pa.Array:
        column = rows.column(name)
        return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)

    def _count(self, values: pa.ChunkedArray) -> int:
        """Returns how many of the sorted rows are kept."""
        n = self._spec.n
        if len(values) <= n or not self._spec.with_ties:
            return min(len(values), n)
        last, after = values[n - 1], values[n:]
        ties = pc.equal(after, last) if last.is_valid else pc.is_null(after)
        count = n + (pc.sum(ties).as_py() or 0)
        if count <= MAX_TOP_N:
            return int(count)
        self._dropped_ties.append((last, too_many_ties(self._spec)))
        return n

    def respond(self, log_offsets: Mapping[int, int], version: bytes) -> tuple[bytes, bytes]:
        """Returns a serialized `TopNResponse`, and the rows scanned for the first caller.

        Raises:
            InvalidRequest: With ties, there are more than 100,000 rows.
            RequestTooLarge: The answer is too large.
        """
        assert self._rows is not None
        assert self._order is not None
        if len(self._rows) >= self._spec.n:
            last = self._order["value"][self._spec.n - 1]
            for value, error in self._dropped_ties:
                if value.equals(last):
                    raise error
        # The response names an index only if all tablets were read through it.
        index = next(iter(self._indexes)) if len(self._indexes) == 1 else ()
        response = lookup_pb2.TopNResponse(log_offsets=log_offsets, version=version, index=index)
        arrays = [self._array(self._rows, name) for name in self._rows.column_names]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._rows.schema)
        if self._spec.columns is not None:
            batch = batch.select(self._spec.columns)
        cost = lookup_pb2.TopNResponse(rows_scanned=self._scanned)
        return frame_answer(response, ipc_of(batch)), cost.SerializeToString()


def columns_to_ask(asked: Iterable[str], needed: Iterable[str]) -> list[str]:
    """Returns the columns to ask tablets for: the requested columns, and the columns that order the rows."""
    return list(dict.fromkeys([*asked, *needed]))
