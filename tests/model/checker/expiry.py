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
from tests.model.checker.drawing import EVERY_KIND, KEYED, NAMES, rows_of, table_of
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
    names = [name for name in sorted(world.tables) if name in NAMES or name in EVERY_KIND]
    if not names:
        return None
    return {
        "rows": {name: rows_of(world.tables[name], random) for name in names},
        "seconds": random.choice([-20_000, -1_000, 1_000, 20_000, 200_000]),
        "restart": random.choice(["none", "none", "stop", "kill"]),
        "cut": draw_cut(world, random),
    }


@define("jump_clock", 1, _draw_jump)
def _jump_clock(world: CheckerWorld, arguments: Arguments) -> None:
    """Sets the wall clock to a wrong time, and corrects it after writes: for rows, time goes on as before."""
    written = {
        name: rows
        for name, rows in arguments["rows"].items()
        if name in world.tables and fits(world.tables[name], rows, complete=True)
    }
    if not written:
        return
    seconds, began = arguments["seconds"], time.monotonic()
    opened = {name: world.table(name) for name in written}
    offsets = {name: table.log_offsets() for name, table in opened.items()}
    times = {name: [_time_of(table)] for name, table in opened.items()}
    world.jump(seconds)
    for name, rows in written.items():
        write_rows(opened[name], rows)
        world.tables[name].upsert(rows)
    if arguments["restart"] == "kill":
        crash(world, arguments["cut"])
    elif arguments["restart"] == "stop":
        assert (code := world.server.stop()) == 0, f"the server ended with code {code}"
        world.server.restart()
    world.client.wait_ready()
    for name, table in opened.items():
        world.check(name)
        times[name].append(_time_of(table))
        if world.tables[name].has_changes:
            # Such a time may be that of an instant at which the wall clock was right, or one at which it was wrong.
            doubtful = times[name][-1] + timedelta(seconds=500 if seconds > 0 else 1)
            with pytest.raises(InvalidRequest):
                table.changes(StartFrom.timestamp(doubtful), StopAt.LATEST).to_arrow()
    world.jump(-seconds)
    for name, kept in [*world.kept.items()]:
        # After a crash, the server does not know until when the clocks had agreed, and may refuse earlier times.
        if kept.kind == "time" or (kept.kind == "changes" and kept.value.options["start"] in world.kept):
            del world.kept[name]
    for name, table in opened.items():
        times[name].append(_time_of(table))
        _check_times(times[name], time.monotonic() - began)
        if world.tables[name].has_changes:
            changes = table.changes(StartFrom.offsets(offsets[name]), StopAt.LATEST).to_pylist()
            _check_order(changes, times[name][0], times[name][-1])
        world.record("jump_clock", world.tables[name])
    check_all(world)


def _check_times(times: list[datetime], passed: float) -> None:
    """Checks the commit times of a table, the first of which is `passed` seconds ago."""
    most = times[0] + timedelta(seconds=passed + 1)
    assert times == sorted(times), f"time goes back: {times}"
    assert times[-1] <= most, f"the time is {times[-1]}, and at most {most} has come"


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
