"""Expiry, partitions and deletes are refused where they do not fit: see the checker for what works together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from scankv import InvalidOption, InvalidRequest, NoPrimaryKey
from tests.support.clocks import FakeClocks, serving

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
