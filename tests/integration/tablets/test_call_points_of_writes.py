"""Writes, transactions, changes, consumers and watches keep their promises while a table with tablets is altered."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest

import scankv
from scankv import StartFrom
from scankv.model.errors import TableExists, TableNotFound, WriterFenced
from tests.support.altered_tables import FEW_TABLETS, LONG, WORKERS, Story, skewed_server
from tests.support.story_readers import (
    ConsumesChanges,
    FollowsChanges,
    ReadsStillRows,
    WatchesRows,
    old_rows,
    still_rows,
)
from tests.support.story_writers import (
    SCHEMA,
    BootstrapsTables,
    CountsUp,
    DeletesKeys,
    DeletesWhere,
    ReplacesRows,
    RewritesTable,
    StoryPart,
    WritesAndUndoes,
    WritesEachRow,
    WritesFewRows,
    WritesInTransactions,
    WritesManyRows,
    WritesOneColumn,
)
from tests.support.workers import processes_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from tests.support.server_process import ServerProcess

    Alteration = Callable[[scankv.Client, str, int], Awaitable[None]]

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.timeout(400),
    pytest.mark.parametrize("seconds", [pytest.param(2.0, id="short"), LONG]),
]


@pytest.fixture(
    scope="module",
    params=[pytest.param(1, id="one_process", marks=pytest.mark.soak), pytest.param(WORKERS, id="two_workers")],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose processes have different wall clocks."""
    with skewed_server(tmp_path_factory.mktemp("points") / "data", request.param) as server:
        yield server


def tables_of(name: str) -> tuple[str, str]:
    """Returns the table of most writers, and the one of which all rows are replaced."""
    return name, f"{name}_whole"


async def create(client: scankv.Client, name: str) -> None:
    """Creates the tables that do not exist."""
    for each in tables_of(name):
        try:
            table = await client.create_table(
                each,
                SCHEMA,
                primary_key=["who", "k"],
                bucket_key=["k"],
                buckets=FEW_TABLETS,
                tablets=FEW_TABLETS,
                indexes=[["a"]],
            )
        except TableExists:
            continue
        if each == name:
            async with client.transaction() as transaction:
                await transaction.upsert(table, still_rows())
                await transaction.upsert(table, old_rows())


async def swap(client: scankv.Client, name: str, _: int) -> None:
    for each in tables_of(name):
        await client.alter_table(each, rename_columns={"a": "b", "b": "a"})


async def add(client: scankv.Client, name: str, number: int) -> None:
    """Adds a column, and drops one that was added before."""
    for each in tables_of(name):
        drops = [f"c{number - 10}"] if number >= 10 else []
        await client.alter_table(each, add_columns=pa.schema([(f"c{number}", pa.int64())]), drop_columns=drops)


async def toggle(client: scankv.Client, name: str, number: int) -> None:
    for each in tables_of(name):
        if number % 2:
            await client.alter_table(each, ttl_seconds=None, ttl_column=None)
        else:
            await client.alter_table(each, ttl_seconds=3600, ttl_column="at")


async def create_again(client: scankv.Client, name: str, _: int) -> None:
    for each in tables_of(name):
        with suppress(TableNotFound):
            await client.drop_table(each)
    await create(client, name)
    await asyncio.sleep(0.3)


def a_moment_ago() -> StartFrom:
    return StartFrom.timestamp(datetime.now(UTC) - timedelta(milliseconds=500))


MAKERS: Final[Mapping[str, Callable[[scankv.Client, str, str], StoryPart]]] = {
    "row": WritesEachRow,
    "few": WritesFewRows,
    "bulk": WritesManyRows,
    "undo": WritesAndUndoes,
    "partial": WritesOneColumn,
    "transaction": WritesInTransactions,
    "replace": ReplacesRows,
    "delete": DeletesWhere,
    "keys": DeletesKeys,
    "boot": BootstrapsTables,
    "whole": RewritesTable,
    "consumer": ConsumesChanges,
    "watch": WatchesRows,
    "read": ReadsStillRows,
    "full": partial(FollowsChanges, start=lambda: StartFrom.FULL, by_token=True, whole=True),
    "earliest": partial(FollowsChanges, start=lambda: StartFrom.EARLIEST, by_token=False, whole=True),
    "latest": partial(FollowsChanges, start=lambda: StartFrom.LATEST, by_token=True, whole=False),
    "timestamp": partial(FollowsChanges, start=a_moment_ago, by_token=False, whole=False),
}
"""What is done beside the alterations. In addition, "counting" stands for two tasks that change the same rows."""

ALL: Final = f"counting {' '.join(MAKERS)}"

SHORT: Final = [
    pytest.param(swap, False, "row few bulk partial undo transaction read earliest", id="swap"),
    pytest.param(swap, True, "few transaction counting consumer", id="swap-failing"),
    pytest.param(add, False, "replace delete keys whole full consumer watch", id="add"),
    pytest.param(toggle, False, "transaction counting read watch timestamp latest", id="ttl"),
    pytest.param(create_again, False, "bulk transaction counting earliest boot replace row", id="again"),
    pytest.param(create_again, True, "bulk replace full few", id="again-failing"),
]
"""The alteration, whether workers are killed and stopped, and what is done beside them in a short story."""


async def parts_of(server: ServerProcess, name: str, whos: str, stack: AsyncExitStack) -> dict[str, StoryPart]:
    """Returns what is done beside the alterations."""
    main, whole = tables_of(name)
    parts, counts = dict[str, StoryPart](), Counter[str]()
    for who in whos.split():
        for number in range(2 if who == "counting" else 1):
            client = await stack.enter_async_context(scankv.connect(server.url))
            if who == "counting":
                parts[f"{who} {number}"] = CountsUp(client, main, who, counts)
            else:
                parts[who] = MAKERS[who](client, whole if who == "whole" else main, who)
            stack.push_async_callback(parts[who if who in parts else f"{who} {number}"].aclose)
    return parts


@pytest.mark.breadth
@pytest.mark.parametrize(("alteration", "fails", "whos"), SHORT)
async def test_every_call_keeps_its_promise_while_tables_are_altered(
    server: ServerProcess, seconds: float, alteration: Alteration, fails: bool, whos: str
) -> None:
    if fails and not processes_of(server):
        return  # One process has no workers to kill.
    name = f"work.{alteration.__name__}_{seconds:g}{fails}"
    # A writer belongs to the table that it was opened for.
    expected = (WriterFenced,) if alteration is create_again else ()
    story = Story(server, name, seconds, fails=fails, expected=expected)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(scankv.connect(server.url))
        await create(client, name)
        parts = await parts_of(server, name, whos if seconds < 10 else ALL, stack)

        async def alter(client: scankv.Client, number: int) -> None:
            await alteration(client, name, number)

        calls = {who: part.run for who, part in parts.items()}
        assert await story.run(alter, calls, lambda answer: answer == "") >= 1
        await create(client, name)  # The last alteration may have been interrupted.
        if alteration is toggle:
            await alter(client, 1)
        story.check({})
        for who, part in parts.items():
            try:
                await part.check(await client.table(part.name))
            except AssertionError as error:
                error.add_note(who)
                raise
