"""Operations that write rows without a change for each, and readers that get past them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aio_client import StartFrom, StopAt
from tests.model.checker.drawing import KEYED, KEYS, NAMES, PARTITIONED, kept_of, rows_of, table_of
from tests.model.checker.model import KEY, PART, part_of, show
from tests.model.checker.operation import Arguments, define
from tests.model.checker.world import differences
from tests.model.checker.writes import fits

if TYPE_CHECKING:
    from random import Random

    from aio_client import ClearedRange
    from tests.model.checker.model import CheckerTable
    from tests.model.checker.world import CheckerWorld


def _table_of(world: CheckerWorld, random: Random) -> CheckerTable | None:
    table = table_of(world, random, KEYED)
    return None if table is None or table.name in NAMES else table


def _draw_upsert(world: CheckerWorld, random: Random) -> Arguments | None:
    table = _table_of(world, random)
    return None if table is None else {"table": table.name, "rows": rows_of(table, random)}


@define("upsert_untracked", 2, _draw_upsert)
def _upsert(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.get(arguments["table"])
    if table is None or not fits(table, arguments["rows"], complete=True):
        return
    world.table(table.name).upsert(arguments["rows"], track_changes=False)
    table.upsert(arguments["rows"], tracked=False)
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
    name, rows, is_net = kept_of("offsets", world, random), random.choice([1, 7, 4096]), random.random() < 0.3
    return {"kept": name, "chunk": rows, "net": is_net} if name is not None else None


@define("replay_from_offsets", 2, _draw_replay)
def _replay(world: CheckerWorld, arguments: Arguments) -> None:
    """A reader that knows the rows as of log offsets, and applies all changes since, has the rows of the table."""
    kept = world.kept.get(arguments["kept"])
    table = None if kept is None else world.tables.get(kept.name)
    if kept is None or table is None or table.number != kept.table or not table.has_key or kept.is_lost:
        return
    # Expired rows that another time to live brings back have no change.
    if "set_ttl" in world.took_effect[table.number]:
        return
    assert kept.view is not None
    rows = {key: show(table.columns, key, values, table.key) for key, values in kept.view.rows.items()}
    scan = world.table(table.name).changes(StartFrom.offsets(kept.value), StopAt.LATEST).with_untracked("rescan")
    scan = scan.with_chunk(rows=arguments["chunk"])
    if arguments["net"]:
        scan = scan.with_catch_up("net", lag_threshold=1)

    def clear(cleared: ClearedRange) -> None:
        keys = list(rows)
        for key, is_gone in zip(keys, cleared.contains(table.keys(keys)).to_pylist(), strict=True):
            if is_gone:
                del rows[key]

    stream = scan.stream()
    stream.on_cleared(clear)
    for row in (row for batch in stream for row in batch.to_pylist()):
        if row["_change_type"] == "-D":
            rows.pop(row[KEY], None)
        elif row["_change_type"] != "-U":
            rows[row[KEY]] = {name: value for name, value in row.items() if not name.startswith("_")}
    assert rows == (expected := table.view().shown()), differences(rows, expected)
    world.record("replay_from_offsets", table)
