"""Default values in stored definitions are refused if they are compressed."""

from __future__ import annotations

import base64

import pyarrow as pa
import pytest

from scankv.model.tables.columns import _scalar_from_text, _scalar_to_text


def test_a_compressed_default_of_a_stored_definition_is_refused() -> None:
    value = pa.scalar("x" * 100_000)
    assert _scalar_from_text(_scalar_to_text(value), value.type) == value
    batch = pa.RecordBatch.from_arrays([pa.array([value], value.type)], names=["value"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    messages = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))
    text = base64.b64encode(messages[1].serialize()).decode("ascii")
    with pytest.raises(ValueError, match="without compression"):
        _scalar_from_text(text, value.type)
