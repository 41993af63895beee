"""A competitor: Arrow Flight `DoGet` over the same store, with the same cursor, decoder and chunk size."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

import pyarrow as pa
from pyarrow import flight

from benchmarks.files import definition, open_bucket
from benchmarks.measure import Timing
from scankv.model.limits import DEFAULT_CHUNK_BYTES, DEFAULT_CHUNK_ROWS
from streaming_server.storage.rows.key_encoder import KeyEncoder
from streaming_server.storage.rows.row_codec import RowCodec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scankv.model.keys.key_codec import KeyCodec
    from streaming_server.storage.bucket.bucket import Bucket
    from streaming_server.storage.cursors.cursor import BucketCursor


class FlightServer:
    """Serves T4 in response to every `DoGet`, on a free port."""

    def __init__(self, data: Path) -> None:
        self._bucket = open_bucket(data)
        table = definition(data)
        codec, keys = RowCodec(table), KeyEncoder(table).codec
        self._server = _AllRows(self._bucket, codec, keys)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._bucket.close()

    def url(self) -> str:
        """Returns the address that the server listens on."""
        return f"grpc://127.0.0.1:{self._server.port}"


class _AllRows(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, bucket: Bucket, codec: RowCodec, keys: KeyCodec) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._bucket = bucket
        self._codec = codec
        self._keys = keys

    def do_get(self, context: object, ticket: object) -> flight.RecordBatchStream:
        decoder = self._codec.decoder()
        cursor = self._bucket.cursor(self._codec, decoder, self._keys)
        return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(decoder.schema, _batches(cursor)))


def _batches(cursor: BucketCursor) -> Iterator[pa.RecordBatch]:
    try:
        while (batch := cursor.next_batch(DEFAULT_CHUNK_ROWS, DEFAULT_CHUNK_BYTES)) is not None:
            yield batch
    finally:
        cursor.close()


class FlightReader:
    """Reads through pyarrow's Flight client, which opens every batch."""

    def __init__(self, url: str) -> None:
        self._client = flight.connect(url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def read(self) -> Timing:
        """Reads all rows once."""
        started, rows = time.perf_counter(), 0
        for batch in self._client.do_get(flight.Ticket(b"")).to_reader():
            rows += batch.num_rows
        return Timing(rows, time.perf_counter() - started)
