"""Operations that write rows without a change for each, and readers that get past them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import pytest

from aio_client import InvalidRequest, PositionExpired, RangeNotTracked, StartFrom, StopAt
from tests.model.checker.drawing import KEYED, KEYS, NAMES, PARTITIONED, UNTRACKED, kept_of, rows_of, table_of
from tests.model.checker.model import KEY, PART, part_of, show
from tests.model.checker.open_transactions import give_up, open_ones
from tests.model.checker.operation import Arguments, define
from tests.model.checker.predicates import draw_where, fits_columns, matches, to_expression
from tests.model.checker.world import compare
from tests.model.checker.writes import fits, takes_columns

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from aio_client import ClearedRange
    from aio_client.sync import Table
    from tests.model.checker.model import CheckerTable, Shown
    from tests.model.checker.predicates import Where
    from tests.model.checker.world import CheckerWorld, Kept

_MOST_CHANGES: Final = 64
"""A table takes no more changes of what its changelog has."""


def _table_of(world: CheckerWorld, random: Random) -> CheckerTable | None:
    table = table_of(world, random, KEYED)
    return None if table is None or table.name in NAMES else table


def _draw_upsert(world: CheckerWorld, random: Random) -> Arguments | None:
    table = _table_of(world, random)
    if table is None:
        return None
    names = [column.name for column in table.columns]
    some = random.sample(names, random.randrange(1, len(names) + 1)) if names and random.random() < 0.3 else None
    return {"table": table.name, "columns": some, "rows": rows_of(table, random, some)}


@define("upsert_untracked", 2, _draw_upsert)
def _upsert(world: CheckerWorld, arguments: Arguments) -> None:
    table, names = world.tables.get(arguments["table"]), arguments.get("columns")
    if table is None or not fits(table, arguments["rows"], complete=names is None):
        return
    if names is not None and not takes_columns(table, names):
        return
    written = None if names is None else [*table.key, *names]
    world.table(table.name).upsert(arguments["rows"], columns=written, track_changes=False)
    table.upsert(arguments["rows"], names, tracked=False)
    world.record("upsert_untracked", table)
    world.check(table.name)


def _draw_range(world: CheckerWorld, random: Random) -> Arguments | None:
    table = _table_of(world, random)
    first, end = random.randrange(KEYS), random.randrange(KEYS + 1)
    if table is None:
        return None
    whole = random.random() < 0.2
    return {"table": table.name, "first": first, "end": end, "whole": whole, "partition": part_of(first)}


@define("delete_range", 1.5, _draw_range)
def _delete_range(world: CheckerWorld, arguments: Arguments) -> None:
    table, first, end = world.tables.get(arguments["table"]), arguments["first"], arguments["end"]
    if table is None:
        return
    opened, keys, where = world.table(table.name), {*table.rows, *table.expired}, f"{KEY} >= {first} and {KEY} < {end}"
    if table.name == PARTITIONED:
        where = f"{PART} = '{arguments['partition']}' and {where}"
        keys = {key for key in keys if part_of(key) == arguments["partition"]}
    if arguments["whole"]:
        result, keys = opened.truncate(track_changes=False), {*table.rows, *table.expired}
    else:
        result = opened.delete(where=where, mode="overwrite", track_changes=False)
        keys = {key for key in keys if first <= key < end}
    visible = sum(key in table.rows for key in keys)
    assert visible <= result.rows <= len(keys), f"deleted {result.rows} rows instead of {visible} to {len(keys)}"
    table.erase(keys)
    world.record("delete_range", table)
    world.check(table.name)


def _draw_replay(world: CheckerWorld, random: Random) -> Arguments | None:
    name = kept_of("offsets", world, random)
    view = None if name is None else world.kept[name].view
    if name is None or view is None:
        return None
    where = draw_where(view.columns, random) if random.random() < 0.4 else None
    options = {"chunk": random.choice([1, 7, 4096]), "net": random.random() < 0.3, "part": random.choice([1, 3, 1000])}
    return {"kept": name, "where": where, **options}


@define("replay_from_offsets", 2, _draw_replay)
def _replay(world: CheckerWorld, arguments: Arguments) -> None:
    """A reader that knows the rows as of log offsets, and applies all changes since, has the rows of the table."""
    kept, where = world.kept.get(arguments["kept"]), arguments.get("where")
    table = None if kept is None else world.tables.get(kept.name)
    if kept is None or table is None or table.number != kept.table or not table.has_key or kept.is_lost:
        return
    # Expired rows that another time to live brings back have no change.
    if table.may_expire or not table.has_changes or not fits_columns(where, table.columns):
        return
    rows, expected = known_rows(table, kept, where), table.view().shown()
    expected = {key: row for key, row in expected.items() if matches(where, row)}
    start = StartFrom.offsets(kept.value)
    scan = world.table(table.name).changes(start, StopAt.LATEST, where=to_expression(where))
    scan = scan.with_unmatched("delete").with_untracked("rescan").with_chunk(rows=arguments["chunk"])
    if arguments["net"]:
        scan = scan.with_catch_up("net", lag_threshold=1)

    def clear(cleared: ClearedRange) -> None:
        keys = list(rows)
        for key, is_gone in zip(keys, cleared.contains(table.keys(keys)).to_pylist(), strict=True):
            if is_gone:
                del rows[key]

    part, is_complete = arguments.get("part", 1000), False
    while not is_complete:
        stream = scan.stream()
        stream.on_cleared(clear)
        with stream:
            read = 0
            for batch in islice(stream, part):
                apply_changes(rows, batch.to_pylist())
                read += 1
            token, is_complete = stream.resume_token, read < part
        scan = scan if token is None else scan.resume_from(token)
    compare(rows, expected)
    world.record("replay_from_offsets", table)


def known_rows(table: CheckerTable, kept: Kept, where: Where | None = None) -> dict[int, Shown]:
    """Returns the matching rows that a reader knows which has kept a view, with the present columns."""
    assert kept.view is not None
    rows = {key: show(table.columns, key, values, table.key) for key, values in kept.view.rows.items()}
    return {key: row for key, row in rows.items() if matches(where, row)}


def apply_changes(rows: dict[int, Shown], changes: list[Shown]) -> None:
    """Applies changes as a reader does that stores the last row of each key."""
    for row in changes:
        if row["_change_type"] == "-D":
            rows.pop(row[KEY], None)
        elif row["_change_type"] != "-U":
            rows[row[KEY]] = {name: value for name, value in row.items() if not name.startswith("_")}


def _draw_changelog(world: CheckerWorld, random: Random) -> Arguments | None:
    table = world.tables.get(UNTRACKED)
    if table is None or table.engine in ("sum", "aggregate") or table.partly > 10_000:
        return None
    to = random.choice(sorted({"full", "upsert", "none"} - {table.changelog}))
    removes = to == "none" or not table.has_changes or random.random() < 0.3
    return {"table": UNTRACKED, "to": to, "removes": removes, "rows": rows_of(table, random)}


@define("set_changelog", 1.5, _draw_changelog)
def _set_changelog(world: CheckerWorld, arguments: Arguments) -> None:
    """Changes what the changelog records, at once or after a time in which it records nothing."""
    table, to, removes = world.tables.get(arguments["table"]), arguments["to"], arguments["removes"]
    if table is None or table.engine in ("sum", "aggregate") or table.changelog == to:
        return
    if not fits(table, arguments["rows"], complete=True) or table.changelog_changes >= _MOST_CHANGES:
        return
    removes = removes or to == "none" or not table.has_changes
    if removes:
        _remove_changelog(world, table, arguments["rows"])
    table.set_changelog(to)
    opened = world.client.alter_table(table.name, changelog=to)
    if not table.has_changes:
        must_refuse_changes(opened)
    for name, kept in [(name, kept) for name, kept in world.kept.items() if kept.table == table.number]:
        kept.is_lost |= removes and kept.kind == "mirror"
        if removes and kept.kind == "offsets" and table.has_changes and not table.may_expire:
            _must_not_miss_changes(opened, table, kept)
        # What becomes of tokens depends on how far they have read.
        if kept.kind in ("changes", "time") or (removes and kept.kind == "offsets"):
            del world.kept[name]
    world.record("set_changelog", table)
    world.check(table.name)


def _remove_changelog(world: CheckerWorld, table: CheckerTable, rows: list[Shown]) -> None:
    for name, open_ in open_ones(world).items():
        if table.number in open_.tables:
            give_up(world, name)
    opened = world.client.alter_table(table.name, changelog="none")
    must_refuse_changes(opened)
    opened.upsert(rows)
    table.upsert(rows)
    world.check(table.name)
    table.lose_changes()


def must_refuse_changes(opened: Table) -> None:
    """What needs changes is refused."""
    position = opened.log_offsets()
    refused: list[Callable[[], object]] = [
        lambda: opened.changes(StartFrom.EARLIEST, StopAt.LATEST).to_arrow(),
        lambda: opened.changes(StartFrom.offsets(position), StopAt.LATEST).to_arrow(),
        lambda: opened.upsert([dict.fromkeys(opened.schema.names) | {KEY: 0}], if_version=position),
        lambda: opened.undo("w1", position),
    ]
    for call in refused:
        with pytest.raises(InvalidRequest):
            call()


def _must_not_miss_changes(opened: Table, table: CheckerTable, kept: Kept) -> None:
    """A position from before has expired, unless no bucket has changed since."""
    found = known_rows(table, kept)
    try:
        apply_changes(found, opened.changes(StartFrom.offsets(kept.value), StopAt.LATEST).to_pylist())
    except (PositionExpired, RangeNotTracked):
        return
    compare(found, table.view().shown())
