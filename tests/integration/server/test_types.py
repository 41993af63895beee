"""Every type through the complete server: written, scanned, looked up, and exactly the same."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given

from aio_client import sync
from tests.support.examples import examples
from tests.support.tables import exact_rows
from tests.unit.model.strategies import FLOATS, INTEGERS, TIMES
from tests.unit.storage.strategies import batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess

DEEP = pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.struct([("x", pa.float16())]))))]))
EVERYTHING = pa.schema(
    [
        pa.field("key", pa.int64(), nullable=False),
        *((str(type_), type_) for type_ in [*INTEGERS, *FLOATS, *TIMES]),
        ("bool", pa.bool_()),
        ("string", pa.string()),
        ("binary", pa.binary()),
        ("small decimal", pa.decimal128(3, -2)),
        ("large decimal", pa.decimal128(38, 12)),
        ("list", pa.list_(pa.string())),
        ("struct", pa.struct([("a", pa.binary()), pa.field("b", pa.timestamp("ns", "UTC"), nullable=False)])),
        ("map", pa.map_(pa.date32(), pa.decimal128(10, 2))),
        ("deep", DEEP),
    ]
)


@pytest.fixture(scope="module")
def everything(shared_server: ServerProcess) -> Iterator[sync.Table]:
    """Makes a table with columns of all types."""
    with sync.connect(shared_server.url) as client:
        yield client.create_table("server.everything", EVERYTHING, primary_key=["key"], buckets=3)


@pytest.mark.breadth
@given(batch=batches(EVERYTHING, min_rows=1, max_rows=4))
@examples(15)
def test_every_type_comes_back_to_the_bit(everything: sync.Table, batch: pa.RecordBatch) -> None:
    keys = pa.array(range(batch.num_rows), pa.int64())
    batch = batch.set_column(0, EVERYTHING.field(0), keys)
    everything.upsert(batch)
    scanned = everything.scan().to_arrow()
    first = scanned.take(pa.array([scanned.column("key").to_pylist().index(key) for key in keys.to_pylist()]))
    assert exact_rows(first) == exact_rows(batch)
    assert exact_rows(everything.lookup(pa.table({"key": keys}))) == exact_rows(batch)


@pytest.mark.parametrize("type_", [t for t in EVERYTHING.types[1:] if not pa.types.is_nested(t)], ids=str)
def test_every_scalar_type_can_be_a_key(shared_server: ServerProcess, type_: pa.DataType) -> None:
    numbers = pa.array([0, 1, 2, 100], pa.int64())
    if pa.types.is_boolean(type_):
        keys = pa.array([False, True])
    elif pa.types.is_binary(type_) or pa.types.is_string(type_):
        keys = pa.array(["", "\x00", "a", "a\x00b"]).cast(type_)
    elif pa.types.is_decimal(type_):
        keys = pa.array([Decimal(number) for number in (0, 100, 200, 10_000)], type_)
    elif pa.types.is_floating(type_):
        keys = numbers.cast(type_)
    else:
        keys = numbers.cast(pa.int32()).cast(type_) if type_.bit_width == 32 else numbers.cast(type_)
    data = pa.table({"k": keys, "v": pa.array(range(len(keys)))})
    with sync.connect(shared_server.url) as client:
        name = "server.key_" + "".join(c if c.isalnum() else "_" for c in str(type_))
        table = client.create_table(name, data.schema, primary_key=["k"], buckets=1)
        table.upsert(data)
        assert exact_rows(table.scan().to_arrow()) == exact_rows(data), "in key order"
        assert exact_rows(table.lookup(data.select(["k"]))) == exact_rows(data)
        table.delete(data.select(["k"]).slice(1))
        assert table.count() == 1
