"""Operations with time: rows expire, and the wall clock jumps."""

from __future__ import annotations

import time
from collections import defaultdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from aio_client import InvalidRequest, StartFrom, StopAt
from tests.model.checker.definitions import TTL_CHANGES, TTLS
from tests.model.checker.disk import crash, draw_cut
from tests.model.checker.drawing import EVERY_KIND, KEYED, rows_of, table_of
from tests.model.checker.model import KEY
from tests.model.checker.operation import Arguments, define
from tests.model.checker.reads import check_all
from tests.model.checker.world import SLACK_SECONDS, write_rows
from tests.model.checker.writes import fits

if TYPE_CHECKING:
    from random import Random

    from aio_client.sync import Table
    from tests.model.checker.model import CheckerTable, Shown
    from tests.model.checker.world import CheckerWorld


def _draw_ttl(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, KEYED)
    if table is None:
        return None
    times = [column.name for column in table.columns if column.kind == "time"]
    return {
        "table": table.name,
        "seconds": random.choice([None, *TTLS, *TTLS]),
        "column": random.choice([None, *times * 3]),
        "changes": random.choice(TTL_CHANGES),
    }


@define("set_ttl", 1.2, _draw_ttl)
def _set_ttl(world: CheckerWorld, arguments: Arguments) -> None:
    table, seconds = world.tables.get(arguments["table"]), arguments["seconds"]
    column = None if seconds is None else arguments.get("column")
    if table is None or column not in (None, *(column.name for column in table.columns if column.kind == "time")):
        return
    is_silent = arguments.get("changes") == "none"
    if table.expired and is_silent != table.is_silent:
        # With one change, it would not be known which of the rows that have expired are removed in which way.
        _change(world, table, None, None)
    _change(world, table, seconds, column, ttl_changes="none" if is_silent else "delete")
    table.is_silent = is_silent
    world.record("set_ttl", table)
    # Rows that were written before may have expired by the new time to live.
    world.tick()
    world.check(table.name)


def _change(world: CheckerWorld, table: CheckerTable, seconds: int | None, column: str | None, **options: Any) -> None:
    table.plan_ttl(seconds, column)
    while not table.is_certain(SLACK_SECONDS):
        world.let_pass(SLACK_SECONDS)
        table.now = world.now()
    world.client.alter_table(table.name, ttl_seconds=seconds, ttl_column=column, **options)
    visible = {row[KEY] for row in world.table(table.name).scan([KEY]).to_pylist()}
    if table.is_silent and visible & table.expired.keys():
        # No change tells a reader that has begun in between that these rows are back.
        for name, kept in [*world.kept.items()]:
            if kept.table == table.number and kept.kind == "changes":
                del world.kept[name]
            kept.is_lost |= kept.table == table.number and kept.kind == "mirror"
    table.settle_ttl(visible)


def _draw_pass(_world: CheckerWorld, random: Random) -> Arguments:
    return {"seconds": random.choice([1_000, 3_000, 6_000, 25_000])}


@define("let_pass", 1, _draw_pass)
def _let_pass(world: CheckerWorld, arguments: Arguments) -> None:
    world.let_pass(arguments["seconds"])
    world.tick()
    world.record("let_pass")
    check_all(world)


def _draw_jump(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, EVERY_KIND)
    if table is None:
        return None
    return {
        "table": table.name,
        "seconds": random.choice([-20_000, -1_000, 1_000, 20_000, 200_000]),
        "rows": rows_of(table, random),
        "restart": random.choice(["none", "none", "stop", "kill"]),
        "cut": draw_cut(world, random),
    }


@define("jump_clock", 1, _draw_jump)
def _jump_clock(world: CheckerWorld, arguments: Arguments) -> None:
    """Sets the wall clock to a wrong time, and corrects it after a write: for rows, time goes on as before."""
    table, seconds, rows = (world.tables.get(arguments["table"]), arguments["seconds"], arguments["rows"])
    if table is None or not fits(table, rows, complete=True):
        return
    opened, began = world.table(table.name), time.monotonic()
    offsets, first = opened.log_offsets(), _time_of(opened)
    world.jump(seconds)
    write_rows(opened, rows)
    table.upsert(rows)
    if arguments["restart"] == "kill":
        crash(world, arguments["cut"])
    elif arguments["restart"] == "stop":
        assert (code := world.server.stop()) == 0, f"the server ended with code {code}"
        world.server.restart()
    world.client.wait_ready()
    world.check(table.name)
    times = [first, _time_of(opened)]
    if table.has_changes:
        # Such a time may be that of an instant at which the wall clock was right, or one at which it was wrong.
        doubtful = times[-1] + timedelta(seconds=500 if seconds > 0 else 1)
        with pytest.raises(InvalidRequest):
            opened.changes(StartFrom.timestamp(doubtful), StopAt.LATEST).to_arrow()
    world.jump(-seconds)
    times.append(_time_of(opened))
    most = first + timedelta(seconds=time.monotonic() - began + 1)
    assert times == sorted(times), f"time goes back: {times}"
    assert times[-1] <= most, f"the time is {times[-1]}, and at most {most} has come"
    for name, kept in [*world.kept.items()]:
        # After a crash, the server does not know until when the clocks had agreed, and may refuse earlier times.
        if kept.kind == "time" or (kept.kind == "changes" and kept.value.options["start"] in world.kept):
            del world.kept[name]
    if table.has_changes:
        _check_order(opened.changes(StartFrom.offsets(offsets), StopAt.LATEST).to_pylist(), first, times[-1])
    world.record("jump_clock", table)
    check_all(world)


def _time_of(opened: Table) -> datetime:
    with opened.scan(limit=0).stream() as stream:
        assert stream.taken_at is not None
        return stream.taken_at


def _check_order(changes: list[Shown], first: datetime, last: datetime) -> None:
    """Checks the commit times of changes: in each bucket, they never decrease."""
    by_bucket = defaultdict[int, list[datetime]](lambda: [first])
    for row in changes:
        by_bucket[row["_bucket"]].append(row["_commit_timestamp"])
    for bucket, times in by_bucket.items():
        assert [*times, last] == sorted([*times, last]), f"the commits of bucket {bucket} have the times {times}"
