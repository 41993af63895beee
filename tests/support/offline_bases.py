"""Columnar bases of offline buckets, without anything that keeps them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from streaming_server.scan.columnar.base_view import BaseView
from streaming_server.scan.columnar.delta import DeltaView, MergedDelta
from streaming_server.storage.columnar import base_writer
from streaming_server.storage.columnar.base_writer import BaseWriter
from streaming_server.storage.columnar.columnar_base import ColumnarBase

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.offline import OfflineBucket

BATCH_ROWS = 50


def based_view(offline: OfflineBucket, directory: Path) -> BaseView:
    """Every second row of a bucket in the small batches of a base, the others as if they were written since."""
    batches = offline.rows().combine_chunks().to_batches()
    batch = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=offline.codec.schema)
    keys = offline.keys.encode_stored(batch)
    even, odd = (pa.array(range(first, batch.num_rows, 2), pa.int64()) for first in (0, 1))
    path = written(offline, batch.take(even), directory)
    net = MergedDelta(keys.take(odd), offline.codec.encode(batch.take(odd)))
    return BaseView(base=ColumnarBase.open(path, ""), delta=DeltaView.of(net), location="a bucket")


def written(offline: OfflineBucket, rows: pa.RecordBatch, directory: Path) -> Path:
    """The directory of a base of some rows, in small batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base_writer, "BATCH_ROWS", BATCH_ROWS)
        writer = BaseWriter(directory, offline.definition, 0, now_micros=time.time_ns() // 1000)
        writer.write(rows, offline.keys.encode_stored(rows))
        return writer.finish(0)


def flip_in_batch(base: Path, name: str, share: float) -> None:
    """Flips a bit in a batch of one of the files of a base: of the batch that is so far through it."""
    opened = ColumnarBase.open(base, "")
    blocks = {"rows.arrow": opened._rows, "keys.arrow": opened._keys}[name]._blocks
    block = blocks[1 + round(share * (len(blocks) - 3))]
    data = bytearray((base / name).read_bytes())
    data[block.offset + block.size // 2] ^= 8
    (base / name).unlink()
    (base / name).write_bytes(data)
