"""Expiry, partitions and deletes are refused where they do not fit: see the checker for what works together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from scankv import InvalidOption, InvalidRequest, NoPrimaryKey, UpgradeNotConfirmed, connect
from streaming_server.storage.files.checked_json import write_checked_json
from streaming_server.storage.tables.data_directory import EVOLUTION_FORMAT
from tests.support.clocks import FakeClocks, serving
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([("day", pa.int32()), ("id", pa.int64()), ("value", pa.int64())])


async def test_a_table_without_a_key_has_no_partitions_expiry_or_deletes(tmp_path: Path) -> None:
    async with serving(tmp_path, FakeClocks()) as (_, client):
        with pytest.raises(InvalidOption, match=r'"ttl_seconds" must be .* in a table without a primary key'):
            await client.create_table("t.log", SCHEMA, primary_key=[], ttl_seconds=60)
        with pytest.raises(InvalidRequest, match="primary key"):
            await client.create_table("t.log", SCHEMA, primary_key=[], partition_by=["day"])
        table = await client.create_table("t.log", SCHEMA, primary_key=[])
        await table.append([{"day": 1, "id": 1, "value": 1}])
        for refused in (
            table.delete(where="day = 1"),
            table.delete(where="day = 1", track_changes=False),
            table.truncate(),
            table.replace([{"day": 1, "id": 1, "value": 2}]),
        ):
            with pytest.raises(NoPrimaryKey):
                await refused
        assert await table.count() == 1


@pytest.mark.one_process  # Several workers need a later format.
async def test_a_directory_of_an_earlier_format_gets_neither_expiry_nor_partitions(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServerProcess(data) as server:
        server.stop()
    write_checked_json(data / "scankv.json", {"format": EVOLUTION_FORMAT})
    with ServerProcess(data) as server:
        async with connect(server.url) as client:
            with pytest.raises(UpgradeNotConfirmed, match="tables whose rows expire need format 5"):
                await client.create_table("t.expiring", SCHEMA, primary_key=["id"], ttl_seconds=60)
            with pytest.raises(UpgradeNotConfirmed, match="partitioned tables need format 5"):
                await client.create_table("t.parts", SCHEMA, primary_key=["day", "id"], partition_by=["day"])
            table = await client.create_table("t.plain", SCHEMA, primary_key=["id"])
            with pytest.raises(UpgradeNotConfirmed, match="tables whose rows expire need format 5"):
                await client.alter_table(table.name, ttl_seconds=60)
