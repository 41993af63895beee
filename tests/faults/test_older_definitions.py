"""A bucket is not served with an older definition of its table, which somebody has put back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import DataLoss, sync

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([("p", pa.string()), ("k", pa.int64()), ("v", pa.int64())])


@pytest.mark.parametrize("change", ["drop of a partition", "changelog"])
def test_a_bucket_is_not_served_with_an_older_definition(server: ServerProcess, change: str) -> None:
    definition = server.data_dir / "tables" / "test" / "t" / "table.json"
    rows = [{"p": each, "k": 1, "v": 1} for each in ("a", "b")]
    with sync.connect(server.url) as client:
        table = client.create_table("test.t", SCHEMA, primary_key=["p", "k"], partition_by=["p"], buckets=1)
        table.upsert(rows)
        # Of partitions, only the last drop has a number.
        table.drop_partition({"p": "b"})
        copy = definition.read_bytes()
        if change == "changelog":
            client.alter_table("test.t", changelog="upsert")
        else:
            table.upsert(rows)
            table.drop_partition({"p": "b"})
    assert server.stop() == 0
    definition.write_bytes(copy)
    server.restart()
    with sync.connect(server.url) as client, pytest.raises(DataLoss, match="newer definition of the table"):
        client.table("test.t").upsert(rows)
