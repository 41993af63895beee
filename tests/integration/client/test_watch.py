"""Watching the first rows of a real server: every change once, with movements, despite failures of the server."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import (
    ClientConfig,
    DeadlineExceeded,
    SchemaMismatch,
    ServerDraining,
    TableNotFound,
    TopN,
    Unavailable,
    UsageError,
    connect,
    sync,
)
from tests.support.server_process import ServerProcess
from tests.support.tables import SCORES, scores
from tests.support.waiting import await_until, wait_until
from tests.support.workers import freeze

if TYPE_CHECKING:
    from aio_client import Client, Table, TopNWatch

EVERY = 0.1
WAIT = 0.2
"""Seconds that the questions of impatient watches wait at the server."""


async def new_table(client: Client, name: str, rows: dict[str, int | None]) -> Table:
    table = await client.create_table(name, SCORES, primary_key=["player"], buckets=2)
    await table.upsert(scores(list(rows), list(rows.values())))
    return table


def ranks(top: TopN) -> list[tuple[str, int]]:
    return list(zip(top.rows["player"].to_pylist(), top.rows["score"].to_pylist(), strict=True))


def pairs(moves: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in moves.columns), strict=True))


def impatient(watch: TopNWatch) -> TopNWatch:
    """Returns the watch with short waits, so that it asks again soon while nothing changes."""
    watch._polls._wait = WAIT
    return watch


async def until_one_more_waits(client: Client, before: int) -> None:
    async def waits() -> bool:
        return (await client.stats()).waiting_calls > before

    await await_until(waits, "one more that waits at the server")


async def told(watch: TopNWatch) -> TopN:
    async with asyncio.timeout(60):
        return await anext(watch)


@pytest.mark.asyncio
async def test_the_first_answer_comes_at_once_and_then_what_changes(client: Client, name: str) -> None:
    table = await new_table(client, name, {"ann": 5, "bob": 3, "cid": 1})
    async with table.watch_top_n(2, "score", every=EVERY) as watch:
        first = await told(watch)
        assert ranks(first) == [("ann", 5), ("bob", 3)]
        assert (pairs(first.entered), pairs(first.left)) == ([("ann", 1), ("bob", 2)], [])
        await table.upsert(scores(["cid"], [9]))
        top = await told(watch)
        assert ranks(top) == [("cid", 9), ("ann", 5)]
        assert (pairs(top.entered), pairs(top.left), pairs(top.moved)) == ([("cid", 1)], [("bob", 2)], [("ann", 1, 2)])
        assert await table.top_n_if_changed(top.version, 2, "score") is None
        # Another value at the same rank is not a movement, but is reported.
        await table.upsert(scores(["cid"], [8]))
        top = await told(watch)
        assert ranks(top) == [("cid", 8), ("ann", 5)]
        assert [part.num_rows for part in (top.entered, top.left, top.moved)] == [0, 0, 0]


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_a_table_that_changes_behind_its_first_rows_tells_nothing_and_reads_once(
    client: Client, name: str
) -> None:
    table = await new_table(client, name, {"ann": 5, "bob": 3, "cid": 1})
    watch = impatient(table.watch_top_n(2, "score", every=EVERY))
    await told(watch)
    await table.upsert(scores(["cid"], [2]))
    waiting = asyncio.ensure_future(anext(watch))

    async def polled() -> bool:
        return watch.unchanged >= 4

    await await_until(polled, "asked four more times")
    assert not waiting.done()
    before = await client.stats()
    polls = watch.unchanged

    async def polled_more() -> bool:
        return watch.unchanged >= polls + 3

    await await_until(polled_more, "asked three more times")
    after = await client.stats()
    assert after.rows_scanned == before.rows_scanned
    assert after.unchanged_results - before.unchanged_results >= 3
    await table.upsert(scores(["cid"], [4]))
    assert pairs((await waiting).entered) == [("cid", 2)]


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_while_nothing_changes_watches_wait_at_the_server_and_ask_nothing(client: Client, name: str) -> None:
    table = await new_table(client, name, {"ann": 5, "bob": 3})
    watches = [table.watch_top_n(2, "score", every=EVERY) for _ in range(20)]
    for watch in watches:
        await told(watch)
    idle = (await client.stats()).waiting_calls
    reads = [asyncio.ensure_future(anext(watch)) for watch in watches]

    async def all_wait() -> bool:
        return (await client.stats()).waiting_calls == idle + len(watches)

    await await_until(all_wait, "all waiting at the server")
    before, began = await client.stats(), time.monotonic()

    async def five_times_as_often_as_they_may_ask() -> bool:
        return time.monotonic() > began + 5 * EVERY

    await await_until(five_times_as_often_as_they_may_ask, "some time")
    after = await client.stats()
    assert after.waiting_calls == before.waiting_calls
    assert after.unchanged_results == before.unchanged_results
    assert after.rows_scanned == before.rows_scanned
    await table.upsert(scores(["cid"], [4]))
    assert [pairs(top.entered) for top in await asyncio.gather(*reads)] == [[("cid", 2)]] * len(watches)
    told_all = await client.stats()
    assert told_all.computed_results - after.computed_results == 1
    assert told_all.cached_results - after.cached_results == len(watches) - 1


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_a_busy_table_costs_one_answer_a_period_and_a_change_is_told_within_one(
    client: Client, name: str
) -> None:
    table, every = await new_table(client, name, {"ann": 5}), 0.3
    watch = table.watch_top_n(1, "score", every=every)
    await told(watch)
    before, began = await client.stats(), time.monotonic()
    waits: list[float] = []
    number = 0
    # Repeated until a change arrives in time, because other tests share this machine.
    while time.monotonic() < began + 5 * every or (min(waits) > every + 0.05 and len(waits) < 30):
        reading = asyncio.ensure_future(told(watch))
        while not reading.done():
            number += 1
            await table.upsert(scores(["ann"], [100 + number]))
        # Changes since the last answer are reported together.
        assert 100 < (await reading).rows["score"][0].as_py() <= 100 + number
        number += 1
        written = time.monotonic()
        await table.upsert(scores(["ann"], [100 + number]))
        assert ranks(await told(watch)) == [("ann", 100 + number)]
        waits.append(time.monotonic() - written)
    took, after = time.monotonic() - began, await client.stats()
    assert after.computed_results - before.computed_results <= took / every + 1
    assert min(waits) < every + 0.05, waits
    assert max(waits) > every / 2, waits


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_reads_that_are_given_up_make_no_more_questions_than_the_cadence_has(client: Client, name: str) -> None:
    table = await new_table(client, name, {"ann": 5})
    watch = table.watch_top_n(1, "score", every=0.5)
    await told(watch)
    questions, began = set(), time.monotonic()
    while time.monotonic() < began + 1.2:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await anext(watch)
        questions.add(watch._polls._due)  # which each query advances
    assert 2 <= len(questions) <= (time.monotonic() - began) / 0.5 + 2
    await table.upsert(scores(["ann"], [6]))
    assert ranks(await told(watch)) == [("ann", 6)]


@pytest.mark.asyncio
async def test_a_server_at_which_too_many_wait_is_asked_once_a_period(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    data = tmp_path_factory.mktemp("full") / "data"
    with ServerProcess(data, "--set", "max_waiting_calls=0") as server:
        async with connect(server.url) as client:
            table = await new_table(client, "game.scores", {"ann": 5})
            watch = table.watch_top_n(1, "score", every=EVERY)
            await told(watch)
            began = time.monotonic()
            waiting = asyncio.ensure_future(anext(watch))

            async def asked() -> bool:
                return watch.unchanged >= 4

            await await_until(asked, "asked four times")
            assert watch.unchanged <= (time.monotonic() - began) / EVERY + 1
            await table.upsert(scores(["bob"], [7]))
            assert ranks(await waiting) == [("bob", 7)]


@pytest.mark.breadth
@pytest.mark.asyncio
@pytest.mark.one_process
async def test_a_server_that_falls_silent_is_noticed_and_asked_over_another_connection(server: ServerProcess) -> None:
    async with connect(server.url, attempt_timeout=3) as client:
        table = await new_table(client, "game.scores", {"ann": 5})
        watch = impatient(table.watch_top_n(1, "score", every=EVERY))
        await told(watch)
        reading = asyncio.ensure_future(anext(watch))
        with freeze(server.process.pid):

            async def troubled() -> bool:
                return isinstance(watch.current_error, DeadlineExceeded)

            await await_until(troubled, "noticed that the server is silent")

        async def answered() -> bool:
            return watch.current_error is None

        await await_until(answered, "answered again")
        await table.upsert(scores(["ann"], [6]))
        assert ranks(await reading) == [("ann", 6)]


@pytest.mark.asyncio
async def test_columns_without_the_key_are_returned_as_asked_and_moves_have_the_key(client: Client, name: str) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("score", pa.float64())])
    table = await client.create_table(name, schema, primary_key=["a", "b"])
    await table.upsert([{"a": 1, "b": "x", "score": 1.0}, {"a": 1, "b": "y", "score": float("nan")}])
    watch = table.watch_top_n(5, "score", columns=["score", "b"], every=EVERY)
    top = await told(watch)
    assert top.rows.schema.names == ["score", "b"]
    assert top.rows["b"].to_pylist() == ["y", "x"]
    assert top.entered.schema.names == ["a", "b", "rank"]
    await table.upsert([{"a": 2, "b": "x", "score": 2.0}])
    top = await told(watch)
    assert (pairs(top.entered), pairs(top.moved)) == ([(2, "x", 2)], [(1, "x", 2, 3)])


@pytest.mark.asyncio
async def test_a_cancelled_read_loses_nothing(client: Client, name: str) -> None:
    table = await new_table(client, name, {"ann": 5})
    watch = table.watch_top_n(2, "score", every=EVERY)
    await told(watch)
    for number in range(10):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02 * number):
                await anext(watch)
        if number == 5:
            await table.upsert(scores(["bob"], [1]))
            break
    assert pairs((await told(watch)).entered) == [("bob", 2)]


@pytest.mark.asyncio
@pytest.mark.parametrize("at", ["client", "server"])
async def test_closing_ends_a_read_that_waits_and_those_that_come(client: Client, name: str, at: str) -> None:
    table = await new_table(client, name, {"ann": 5})
    watch = table.watch_top_n(1, "score", every=1000 if at == "client" else EVERY)
    await told(watch)
    before = (await client.stats()).waiting_calls
    waiting = asyncio.ensure_future(anext(watch, "closed"))
    await asyncio.sleep(0)
    if at == "server":
        await until_one_more_waits(client, before)
    with pytest.raises(UsageError, match="another task"):
        await anext(watch)
    await watch.aclose()
    await watch.aclose()
    assert await waiting == "closed"
    assert [top async for top in watch] == []


@pytest.mark.asyncio
@pytest.mark.parametrize("at", ["client", "server"])
async def test_closing_the_client_ends_a_watch_that_waits(shared_server: ServerProcess, name: str, at: str) -> None:
    client = await connect(shared_server.url)
    table = await new_table(client, name, {"ann": 5})
    watch = table.watch_top_n(1, "score", every=1000 if at == "client" else EVERY)
    await told(watch)
    before = (await client.stats()).waiting_calls
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    if at == "server":
        await until_one_more_waits(client, before)
    await client.aclose()
    with pytest.raises(UsageError, match="closed"):
        await waiting


@pytest.mark.asyncio
async def test_a_dropped_table_ends_its_watches(client: Client, name: str) -> None:
    table = await new_table(client, name, {"ann": 5})
    watch = table.watch_top_n(1, "score", every=EVERY)
    await told(watch)
    await client.drop_table(name)
    for _ in range(2):
        with pytest.raises(TableNotFound):
            await told(watch)


@pytest.mark.asyncio
async def test_a_table_created_anew_with_another_key_ends_its_watches(client: Client, name: str) -> None:
    table = await new_table(client, name, {"ann": 5})
    watch = table.watch_top_n(1, "score", every=EVERY)
    await told(watch)
    await client.drop_table(name)
    await client.create_table(name, pa.schema([("id", pa.int64()), ("score", pa.int64())]), primary_key=["id"])
    with pytest.raises(SchemaMismatch, match="created again"):
        await told(watch)


@pytest.mark.asyncio
async def test_added_columns_are_told_and_break_nothing(client: Client, name: str) -> None:
    table = await new_table(client, name, {"ann": 5})
    watch = table.watch_top_n(1, "score", every=EVERY)
    narrow = table.watch_top_n(1, "score", columns=["score"], every=EVERY)
    await told(watch)
    await told(narrow)
    await client.alter_table(name, add_columns=pa.schema([("team", pa.string())]))
    top = await told(watch)
    assert top.rows.to_pylist() == [{"player": "ann", "score": 5, "team": None}]
    assert [part.num_rows for part in (top.entered, top.left, top.moved)] == [0, 0, 0]
    await table.upsert(scores(["ann"], [6]))
    assert (await told(narrow)).rows.to_pylist() == [{"score": 6}]


@pytest.mark.parametrize(
    "arguments",
    [
        {"limit": 0},
        {"limit": 100_001},
        {"limit": True},
        {"order_by": 3},
        {"every": 0.09},
        {"every": None},
        {"ties": "none"},
    ],
)
def test_what_cannot_be_watched_is_refused_at_once(
    sync_client: sync.Client, name: str, arguments: dict[str, Any]
) -> None:
    table = sync_client.create_table(name, SCORES, primary_key=["player"])
    with pytest.raises(UsageError):
        table.watch_top_n(**{"limit": 1, "order_by": "score", **arguments})


@pytest.mark.asyncio
async def test_a_column_that_does_not_exist_ends_the_watch(client: Client, name: str) -> None:
    table = await new_table(client, name, {"ann": 5})
    with pytest.raises(SchemaMismatch, match="scroe"):
        await told(table.watch_top_n(1, "scroe", every=EVERY))


@pytest.mark.breadth
@pytest.mark.asyncio
@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_watch_rides_through_a_restart_of_the_server(server: ServerProcess, end: str) -> None:
    async with connect(server.url) as client:
        table = await new_table(client, "game.scores", {"ann": 5, "bob": 3})
        watch = table.watch_top_n(2, "score", every=EVERY)
        await told(watch)
        waiting = asyncio.ensure_future(anext(watch))
        await until_one_more_waits(client, 0)
        await asyncio.to_thread(server.kill if end == "kill" else server.stop)

        async def troubled() -> bool:
            return isinstance(watch.current_error, Unavailable | ServerDraining)

        await await_until(troubled, "noticed that the server is away")
        await asyncio.to_thread(server.restart)
        polls = watch.unchanged

        async def polled() -> bool:
            return watch.unchanged > polls

        await await_until(polled, "answered again")
        assert watch.current_error is None
        assert not waiting.done()
        assert (await client.stats()).rows_scanned == 0
        await table.upsert(scores(["bob"], [7]))
        async with asyncio.timeout(60):
            assert pairs((await waiting).moved) == [("bob", 2, 1), ("ann", 1, 2)]


@pytest.mark.breadth
@pytest.mark.asyncio
async def test_a_server_that_stays_away_ends_the_watch(server: ServerProcess) -> None:
    async with connect(server.url, operation_timeout=2) as client:
        table = await new_table(client, "game.scores", {"ann": 5})
        watch = table.watch_top_n(2, "score", every=EVERY)
        await told(watch)
        await asyncio.to_thread(server.kill)
        with pytest.raises(Unavailable):
            await told(watch)


def test_what_was_not_taken_is_given_as_one_change(sync_client: sync.Client, name: str) -> None:
    table = sync_client.create_table(name, SCORES, primary_key=["player"])
    table.upsert(scores(["ann", "bob"], [5, 3]))
    with table.watch_top_n(3, "score", every=EVERY) as watch:

        def is_there(player: str) -> bool:
            top = watch.latest()
            return top is not None and player in top.rows["player"].to_pylist()

        next(watch)
        for player, score in (("cid", 9), ("dan", 8)):
            table.upsert(scores([player], [score]))
            wait_until(partial(is_there, player), f"{player} is there")
        top = next(watch)
        assert pairs(top.entered) == [("cid", 1), ("dan", 2)]
        assert pairs(top.moved) == [("ann", 1, 3)]
        assert pairs(top.left) == [("bob", 2)]


def test_latest_never_blocks_and_raises_what_ended_the_watch(sync_client: sync.Client, name: str) -> None:
    table = sync_client.create_table(name, SCORES, primary_key=["player"])
    table.upsert(scores(["ann"], [5]))
    watch = table.watch_top_n(1, "score", every=EVERY)
    top = wait_until(watch.latest, "the first answer")
    assert top is not None
    assert ranks(top) == [("ann", 5)]
    sync_client.drop_table(name)

    def ended() -> bool:
        try:
            watch.latest()
        except TableNotFound:
            return True
        return False

    wait_until(ended, "the watch has ended")
    with pytest.raises(TableNotFound):
        list(watch)


def test_closing_from_another_thread_ends_a_blocking_read(sync_client: sync.Client, name: str) -> None:
    table = sync_client.create_table(name, SCORES, primary_key=["player"])
    watch = table.watch_top_n(1, "score", every=EVERY)
    next(watch)
    found: list[list[TopN]] = []
    reader = threading.Thread(target=lambda: found.append(list(watch)))
    reader.start()
    watch.close()
    reader.join(20)
    assert found == [[]]


def test_closing_the_client_ends_a_blocking_read(shared_server: ServerProcess, name: str) -> None:
    client = sync.Client(ClientConfig(url=shared_server.url))
    watch = client.create_table(name, SCORES, primary_key=["player"]).watch_top_n(1, "score", every=1000)
    next(watch)
    failures: list[BaseException] = []

    def read() -> None:
        try:
            next(watch)
        except UsageError as error:
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    client.close()
    reader.join(20)
    assert len(failures) == 1


def test_a_blocking_watch_that_is_dropped_asks_no_more(sync_client: sync.Client, name: str) -> None:
    table = sync_client.create_table(name, SCORES, primary_key=["player"])
    watch = table.watch_top_n(1, "score", every=EVERY)
    next(watch)
    polls = watch._polls
    del watch
    gc.collect()
    wait_until(lambda: polls._closed and polls._waiting is None, "it has ended")


def test_a_client_of_which_only_a_watch_was_left_closes_itself(shared_server: ServerProcess, name: str) -> None:
    client = sync.Client(ClientConfig(url=shared_server.url))
    watch = client.create_table(name, SCORES, primary_key=["player"]).watch_top_n(1, "score", every=EVERY)
    thread = client._runner._thread
    del client
    next(watch)
    assert thread.is_alive()
    del watch
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()
