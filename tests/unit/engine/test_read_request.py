"""A compressed request is refused before it is decompressed, however it names the compression."""

from __future__ import annotations

import pyarrow as pa
import pytest

from scankv.model.errors import InvalidRequest
from streaming_server.engine.bucket.request_rows import read_request
from tests.support.hostile_requests import expanding_request


def test_a_short_request_that_expands_to_a_gibibyte_is_refused_before_it_is_decompressed() -> None:
    pool = pa.default_memory_pool()
    most = pool.max_memory()
    for data in (expanding_request(hides_compression=hides) for hides in (False, True)):
        assert len(data) < 1 << 20
        with pytest.raises(InvalidRequest, match="is compressed: send it"):
            read_request(data, pa.schema([("k", pa.int64())]))
    assert pool.max_memory() < most + (1 << 29)
