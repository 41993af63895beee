"""A lookup of more than an answer holds is refused, however little of it each tablet has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import sync
from scankv.model.keys.key_codec import KeyCodec
from scankv.v1 import lookup_pb2
from tests.support.server_process import ServerProcess
from tests.support.tables import ipc_stream
from tests.support.tablet_twins import TabletTwins
from tests.support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.binary())])
KEY = KeyCodec([pa.int64()])
ROWS = 5


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TabletTwins]:
    with (
        ServerProcess(tmp_path_factory.mktemp("large") / "data", "--workers", "2") as server,
        sync.connect(server.url) as client,
        Wire(server.url) as wire,
    ):
        twins = TabletTwins.create(client, wire, "lookups.large", SCHEMA, ["k"])
        for k in range(ROWS):
            twins.upsert(pa.record_batch({"k": [k], "v": pa.array([bytes(8 << 20)])}, SCHEMA))
        yield twins


def keys(count: int) -> dict[str, Any]:
    batch = pa.record_batch({"k": pa.array(range(count), pa.int64())})
    return {"keys": ipc_stream(batch.schema, batch)}


def encoded_keys(count: int) -> dict[str, Any]:
    return {"encoded_keys": [KEY.encode_one([k]) for k in range(count)]}


@pytest.mark.breadth
@pytest.mark.parametrize("asked", [keys, encoded_keys])
def test_rows_that_fit_no_answer_are_refused(twins: TabletTwins, asked: Any) -> None:
    def look_up(name: str) -> lookup_pb2.LookupResponse:
        return twins.wire.lookups.Lookup(lookup_pb2.LookupRequest(table=name, **asked(ROWS)), timeout=60)

    plain, divided = twins.both(look_up)
    assert divided == plain
    assert plain[:2] == ("RESOURCE_EXHAUSTED", "REQUEST_TOO_LARGE")
    for table in twins:
        few = lookup_pb2.LookupRequest(table=table.name, **asked(3))
        assert list(twins.wire.lookups.Lookup(few, timeout=60).found) == [1, 1, 1]
