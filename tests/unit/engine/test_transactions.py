"""Transactions without a network: what is staged once, what survives a restart, and what is refused."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from scankv.model.errors import (
    InvalidRequest,
    PositionExpired,
    RequestTooLarge,
    TooManyTransactions,
    TransactionConflict,
    TransactionLost,
)
from streaming_server.engine.merging.preparing import MERGE
from streaming_server.engine.transactions.open_transaction import OpenTransaction, TransactionOptions
from streaming_server.engine.transactions.request_staging import StagedRequestId
from streaming_server.storage.transactions.decisions import CommittedTransaction
from streaming_server.storage.transactions.staging import UPSERT, StagingDirectory
from tests.support.snapshots import TABLE, new_table, put, tables_in
from tests.support.tables import SCORES, ipc_stream, scores

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from streaming_server.engine.tables.tables import Tables

pytestmark = pytest.mark.asyncio


async def begin(tables: Tables, **terms: Any) -> OpenTransaction:
    begun = await tables.transactions.begin(
        TransactionOptions(**{"id": "", "attempt": "one", "finds_conflicts": False, "ttl": 60, **terms})
    )
    assert isinstance(begun, OpenTransaction)
    return begun


async def stage(tables: Tables, token: str, sequence: int, *, part: str = "main", **values: int) -> int:
    data = ipc_stream(SCORES, scores(list(values), list(values.values())))
    place = StagedRequestId(token=token, part=part, sequence=sequence)
    return await tables.transactions.staging.stage(place, tables.table(TABLE), UPSERT, data, kind=MERGE)


async def all_scores(tables: Tables) -> dict[str, int]:
    keys = scores(["ann", "ben", "cid"], [0] * 3).select(["player"])
    batch, _, _ = await tables.table(TABLE).reads.lookup(ipc_stream(keys.schema, keys), None)
    return dict(zip(batch["player"].to_pylist(), batch["score"].to_pylist(), strict=True))


async def test_repeated_calls_stage_and_begin_once_and_missing_ones_are_refused(tmp_path: Path) -> None:
    async with tables_in(tmp_path / "data") as tables:
        await new_table(tables)
        begun = await begin(tables, id="job:1")
        assert await begin(tables, id="job:1") is begun
        for _ in range(3):
            assert await stage(tables, begun.token, 0, ann=1) == 1
        with pytest.raises(InvalidRequest, match="request 2 of the part is too early: the server has 1"):
            await stage(tables, begun.token, 2, ben=1)
        assert await stage(tables, begun.token, 1, ben=1) == 1
        assert [part.requests for part in begun.parts.values()] == [2]
        results = await asyncio.gather(*(tables.transactions.commit(begun.token, "job:1", ()) for _ in range(3)))
        assert results == [results[0]] * 3
        assert results[0].rows == 2
        assert isinstance(await tables.transactions.begin(begun.options), CommittedTransaction)


async def test_several_begin_one_transaction_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    created, create = threading.Event(), StagingDirectory.create

    def create_late(directory: StagingDirectory, content: Mapping[str, Any]) -> None:
        assert created.wait(60)
        create(directory, content)

    async with tables_in(tmp_path / "data") as tables:
        await new_table(tables)
        before = await begin(tables, id="job:1", attempt="zero")
        await stage(tables, before.token, 0, ann=1)
        monkeypatch.setattr(StagingDirectory, "create", create_late)
        try:
            first, second = (asyncio.create_task(begin(tables, id="job:1", attempt="one")) for _ in range(2))
            begun, _ = await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
            token = begun.pop().result().token
            staging = asyncio.create_task(stage(tables, token, 0, ben=1))
            # Long enough for a call that does not wait.
            await asyncio.wait([staging], timeout=0.3)
        finally:
            created.set()
        assert {(await task).token for task in (first, second)} == {token}
        assert await staging == 1
        assert [each.token for each in tables.transactions.open] == [token]


async def test_what_is_staged_survives_a_restart_and_finds_conflicts_over_it(tmp_path: Path) -> None:
    async with tables_in(tmp_path / "data") as tables:
        await put(await new_table(tables), {"ann": 0, "ben": 0})
        good, bad = [await begin(tables, id=id_, finds_conflicts=True) for id_ in ("good", "bad")]
        await stage(tables, good.token, 0, ann=1)
        await stage(tables, bad.token, 0, ben=1)
        await stage(tables, bad.token, 0, part="other", cid=1)
        await put(tables.table(TABLE), {"ben": 5})
    async with tables_in(tmp_path / "data") as tables:
        await tables.recover()
        transactions = tables.transactions
        assert {each.options.id for each in transactions.open} == {"good", "bad"}
        await stage(tables, good.token, 0, ann=1)
        await stage(tables, good.token, 1, ann=2)
        with pytest.raises(TransactionConflict):
            await transactions.commit(bad.token, "bad", [("main", 1)])
        committed = await transactions.commit(good.token, "good", [("main", 2)])
        assert await all_scores(tables) == {"ann": 2, "ben": 5}
        # It can be committed again without the conflicting keys.
        await transactions.commit(bad.token, "bad", [("other", 1)])
        assert (await all_scores(tables))["cid"] == 1
    async with tables_in(tmp_path / "data") as tables:
        await tables.recover()
        assert await tables.transactions.commit("whatever", "good", ()) == committed
        assert not tables.transactions.open


async def test_there_are_bounds(tmp_path: Path) -> None:
    settings = {"max_transactions": 2, "max_transaction_bytes": 1 << 20}
    async with tables_in(tmp_path / "data", **settings) as tables:
        await new_table(tables)
        begun = await begin(tables)
        names: dict[str, Any] = {f"{'x' * 9_000}{number}": 1 for number in range(100)}
        assert await stage(tables, begun.token, 0, **names) == 100
        with pytest.raises(RequestTooLarge, match="max_transaction_bytes"):
            await stage(tables, begun.token, 1, **names)
        await stage(tables, begun.token, 1, ann=1)
        await begin(tables)
        with pytest.raises(TooManyTransactions):
            await begin(tables)
        await tables.transactions.abort(begun.token)
        await begin(tables)
        for terms in ({"id": "x" * 129}, {"id": "a\nb"}, {"ttl": 0.5}, {"attempt": ""}):
            with pytest.raises(InvalidRequest):
                await begin(tables, **terms)
        with pytest.raises(InvalidRequest, match="part"):
            await stage(tables, tables.transactions.open[0].token, 0, part="")
        with pytest.raises(TransactionLost):
            await stage(tables, begun.token, 0, ann=1)


async def test_changes_that_are_no_longer_there_cannot_be_checked(tmp_path: Path) -> None:
    async with tables_in(tmp_path / "data") as tables:
        table = await new_table(tables, buckets=1)
        await put(table, {"ann": 0})
        begun = await begin(tables, finds_conflicts=True)
        await stage(tables, begun.token, 0, ann=1)
        for value in range(1, 4):
            await put(table, {"ben": value})
        bucket = await table.buckets[0].open()
        bucket.trim_log(bucket.state.log_offset, table.definition)
        assert bucket.state.log_first == 1
        held = bucket.log.holds.oldest()
        assert held is not None
        # As for a hold that keeps too much.
        bucket.log.holds.release(held[0])
        bucket.trim_log(bucket.state.log_offset, table.definition)
        with pytest.raises(PositionExpired):
            await tables.transactions.commit(begun.token, "", ())
        assert (await all_scores(tables))["ann"] == 0
