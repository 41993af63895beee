"""Divides the rows and keys of a request among the tablets of a table, and joins the rows that tablets have found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from scankv.model.errors import RequestTooLarge
from scankv.model.limits import MAX_REQUEST_BYTES
from scankv.v1 import lookup_pb2
from streaming_server.engine.bucket.request_rows import read_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt
    from google.protobuf.message import Message

    from streaming_server.services.tablets.tablet_calls import TabletCalls

Places: TypeAlias = "dict[int, npt.NDArray[np.int64]]"
"""By tablet, the positions in the request of the rows that the tablet gets, ascending."""

_Request = TypeVar("_Request", bound="Message")

UPSERT_CALL: Final = "scankv.v1.WriteService/Upsert"
DELETE_CALL: Final = "scankv.v1.WriteService/Delete"


def without(request: _Request, field: str) -> _Request:
    """Returns a copy of a request without one large field. Removes the field from the request, too."""
    copy = type(request)()
    request.ClearField(field)
    copy.CopyFrom(request)
    return copy


def places_of(calls: TabletCalls, buckets: Iterable[int]) -> Places:
    """Returns which rows each tablet gets. `buckets` has the bucket of each row."""
    tablets = calls.tablets_of_buckets(np.fromiter(buckets, np.int64))
    return {int(tablet): np.flatnonzero(tablets == tablet) for tablet in np.unique(tablets)}


def divide_rows(data: bytes, calls: TabletCalls) -> dict[int, tuple[npt.NDArray[np.int64], bytes]]:
    """Returns the positions and the rows of each tablet in a checked request, as an Arrow IPC stream. Blocks.

    The first tablet gets a request without rows.
    """
    batch, keys = read_batch(data), calls.table.state.codec.keys
    if not batch.num_rows:
        return {0: (np.zeros(0, np.int64), data)}
    _, buckets = keys.encode(keys.canonicalize(batch))
    places = places_of(calls, buckets)
    if len(places) == 1:
        return {tablet: (rows, data) for tablet, rows in places.items()}
    return {tablet: (rows, to_ipc(batch.take(pa.array(rows)))) for tablet, rows in places.items()}


def to_ipc(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def check_size(parts: Iterable[int]) -> None:
    """Raises RequestTooLarge if parts of an answer with so many bytes together exceed the limit of a response."""
    if sum(parts) > MAX_REQUEST_BYTES:
        raise RequestTooLarge(
            f"the answer has more than {MAX_REQUEST_BYTES:,} bytes; the limit is {MAX_REQUEST_BYTES:,}: ask for fewer "
            "keys at once"
        )


def join_found(
    answers: Mapping[int, lookup_pb2.LookupResponse], places: Places, calls: TabletCalls
) -> lookup_pb2.LookupResponse:
    """Joins the rows found at the tablets, in the order of the keys of the request. Blocks.

    Raises RequestTooLarge if they exceed the limit of a response.
    """
    check_size(len(each.rows) for each in answers.values())
    joined = lookup_pb2.LookupResponse(
        table_incarnation=calls.definition.incarnation, schema_id=calls.definition.schema.id
    )
    found = np.zeros(sum(map(len, places.values())), np.uint8)
    rows, order = [], []
    for tablet, answer in answers.items():
        is_there = np.frombuffer(answer.found, np.uint8)
        found[places[tablet]] = is_there
        order.append(places[tablet][is_there == 1])
        rows.append(pa.ipc.open_stream(pa.py_buffer(answer.rows)).read_all())
        for bucket, offset in answer.log_offsets.items():
            joined.log_offsets[bucket] = offset
    table = pa.concat_tables(rows).take(pa.array(np.argsort(np.concatenate(order)))).combine_chunks()
    batches = table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
    joined.rows, joined.found = to_ipc(batches[0]), found.tobytes()
    return joined
