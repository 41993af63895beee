"""Invalid Arrow data from clients is refused with a reason, and never accepted."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from scankv.model.errors import InvalidRequest, RequestTooLarge, SchemaMismatch
from scankv.model.limits import MAX_REQUEST_BYTES
from streaming_server.engine.bucket.request_rows import read_request
from tests.support.hostile_requests import (
    SCHEMA,
    binary_bomb,
    bomb_schema,
    bool_bomb,
    expanding_request,
    good_batch,
    good_request,
    hostile_requests,
    many_small_batches,
)
from tests.support.tables import exact_rows, ipc_stream

HOSTILE = hostile_requests()


def test_good_requests_are_taken() -> None:
    assert exact_rows(read_request(good_request(), SCHEMA)) == exact_rows(good_batch())
    shuffled = good_batch().select(["pairs", "k", "items", "n"])
    two = ipc_stream(shuffled.schema, shuffled.slice(1, 1), shuffled.slice(0, 0), shuffled.slice(2))
    assert exact_rows(read_request(two, SCHEMA)) == exact_rows(good_batch().slice(1))
    assert read_request(ipc_stream(SCHEMA), SCHEMA).num_rows == 0
    assert read_request(many_small_batches(2000), SCHEMA).num_rows == 2000


def test_a_short_request_that_expands_to_a_gibibyte_is_refused_before_it_is_decompressed() -> None:
    pool = pa.default_memory_pool()
    most = pool.max_memory()
    for data in (expanding_request(hides_compression=hides) for hides in (False, True)):
        assert len(data) < 1 << 20
        with pytest.raises(InvalidRequest, match="is compressed: send it"):
            read_request(data, pa.schema([("k", pa.int64())]))
    assert pool.max_memory() < most + (1 << 29)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_request_is_refused(name: str) -> None:
    with pytest.raises((InvalidRequest, RequestTooLarge)):
        read_request(HOSTILE[name], SCHEMA)


def test_a_type_that_no_table_has_is_refused_without_rows() -> None:
    schema = SCHEMA.set(1, pa.field("n", pa.month_day_nano_interval()))
    with pytest.raises(SchemaMismatch, match='"n" is int64'):
        read_request(ipc_stream(schema), SCHEMA)


def test_a_request_over_the_limit_is_refused_unread() -> None:
    with pytest.raises(RequestTooLarge):
        read_request(bytes(MAX_REQUEST_BYTES + 1), SCHEMA)


@pytest.mark.parametrize(
    ("bomb", "type_"), [(bool_bomb, pa.bool_()), (binary_bomb, pa.binary())], ids=["bool", "binary"]
)
def test_a_small_request_that_means_gigabytes_is_refused(bomb: object, type_: pa.DataType) -> None:
    assert callable(bomb)
    data = bomb()
    assert len(data) < MAX_REQUEST_BYTES / 2
    with pytest.raises(RequestTooLarge):
        read_request(data, bomb_schema(type_))


def test_a_null_or_wrong_type_names_its_column_and_row() -> None:
    batch = pa.RecordBatch.from_pylist([{"k": "a"}, {"k": None}], schema=pa.schema([("k", pa.string())]))
    request = ipc_stream(batch.schema, batch)
    with pytest.raises(SchemaMismatch) as caught:
        read_request(request, SCHEMA.empty_table().select(["k"]).schema)
    assert (caught.value.details["column"], caught.value.details["row"]) == ("k", "1")


def test_damaged_requests_are_refused_or_valid() -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    good = good_request()
    taken = 0
    for number in range(3000):
        data = bytearray(good)
        for _ in range(rng.choice([1, 1, 2, 5])):
            place = rng.randrange(len(data))
            data[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, data[place] ^ 1 << rng.randrange(8)])
        try:
            read_request(bytes(data), SCHEMA).validate(full=True)
            taken += 1
        except (InvalidRequest, RequestTooLarge):
            pass
        except Exception as error:
            error.add_note(f"seed {seed}, number {number}")
            raise
    assert 0 < taken < 3000
