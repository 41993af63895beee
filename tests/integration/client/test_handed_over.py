"""A full start that is resumed by token again and again: among its rows, and among the changes after them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import StopAt
from tests.model.replayed_table import ReplayedTable

if TYPE_CHECKING:
    from aio_client import Client

pytestmark = pytest.mark.asyncio

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])


async def test_a_token_of_changes_still_knows_which_of_them_the_rows_show(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], buckets=1)
    await table.upsert([{"k": key, "v": 0} for key in range(100)])
    replay, token, phases = ReplayedTable({}, selective=True), None, []
    for turn in range(6):
        scan = table.changes().with_chunk(rows=20)
        async with (scan if token is None else scan.resume_from(token)).stream() as stream:
            phases.append(stream.phase)
            async for batch in stream:
                replay.play(batch)
                token = stream.resume_token
                # Once among the rows, then after the first of the changes.
                if turn == 0 or stream.phase == "changes":
                    break
        if turn == 0:
            for value in range(1, 4):
                await table.upsert([{"k": key, "v": value} for key in range(100)])
    assert token is not None
    assert phases == ["rows", "rows", "changes", "changes", "changes", "changes"]
    async for batch in table.changes(stop=StopAt.LATEST).resume_from(token).stream():
        replay.play(batch)
    assert replay.table == {row["k"]: row for row in await table.scan().to_pylist()}
