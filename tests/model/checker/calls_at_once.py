"""An operation of many callers of one asyncio client, whose calls share requests: each ends as if it were alone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aio_client import ScanKvError
from tests.model.checker.copies import loop_of
from tests.model.checker.drawing import EVERY_KIND, rows_of, table_of
from tests.model.checker.model import KEY, exact
from tests.model.checker.operation import Arguments, define
from tests.model.checker.writes import DELETING, fits

if TYPE_CHECKING:
    from random import Random

    from aio_client import Client, Table
    from tests.model.checker.model import CheckerTable
    from tests.model.checker.world import CheckerWorld


def _draw(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, EVERY_KIND)
    if table is None:
        return None
    kinds = ["put", "put", "bad"]
    kinds += ["get"] if table.has_key else []
    kinds += ["delete"] if table.engine in DELETING else []
    rows = {row[KEY]: row for _ in range(3) for row in rows_of(table, random)}
    return {"table": table.name, "calls": [{"do": random.choice(kinds), "row": row} for row in rows.values()]}


@define("call_at_once", 2, _draw)
def _call_at_once(world: CheckerWorld, arguments: Arguments) -> None:
    """Each call has a key of its own, so their order does not matter."""
    table, calls = world.tables.get(arguments["table"]), arguments["calls"]
    if table is None or not fits(table, [call["row"] for call in calls], complete=True):
        return
    if any(call["do"] == "delete" for call in calls) and table.engine not in DELETING:
        return
    loop, before = loop_of(world), table.view().shown()
    outcomes = loop.run(lambda: _make_all(loop.client, table, calls))
    for call, outcome in zip(calls, outcomes, strict=True):
        key = call["row"][KEY]
        if call["do"] == "put":
            table.upsert([call["row"]])
        elif call["do"] == "delete":
            table.delete([key])
        if call["do"] == "bad":
            assert isinstance(outcome, ScanKvError), f"a row without a key was written: {outcome}"
        elif isinstance(outcome, BaseException):
            raise outcome
        elif call["do"] == "get":
            assert exact(outcome) == exact(before.get(key)), f"key {key}: got {outcome}, expected {before.get(key)}"
    world.record("call_at_once", table)
    world.check(table.name)


async def _make_all(client: Client, table: CheckerTable, calls: list[Arguments]) -> list[Any]:
    """Makes all calls at once. Returns the result or error of each."""
    opened = await client.table(table.name)
    return await asyncio.gather(*(_make(opened, table, call) for call in calls), return_exceptions=True)


async def _make(opened: Table, table: CheckerTable, call: Arguments) -> object:
    row, (key,) = call["row"], table.keys([call["row"][KEY]])
    if call["do"] == "get":
        return await opened.get(key)
    if call["do"] == "delete":
        return await opened.delete(key)
    written = {**row, KEY: None} if call["do"] == "bad" else row
    return await (opened.upsert if table.has_key else opened.append)([written])
