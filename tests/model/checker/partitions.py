"""Operations with the partitions of a table."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from tests.model.checker.drawing import PARTITIONED, keys_of
from tests.model.checker.model import PART, part_of
from tests.model.checker.operation import Arguments, define
from tests.model.checker.reads import check_count, check_partitions
from tests.model.checker.world import compare

if TYPE_CHECKING:
    from random import Random

    from tests.model.checker.world import CheckerWorld


def _draw_partition(world: CheckerWorld, random: Random) -> Arguments | None:
    return {"partition": part_of(keys_of(random)[0])} if PARTITIONED in world.tables else None


@define("create_partition", 0.7, _draw_partition)
def _create_partition(world: CheckerWorld, arguments: Arguments) -> None:
    table, partition = world.tables.get(PARTITIONED), arguments["partition"]
    if table is None:
        return
    is_new = world.table(table.name).create_partition({PART: partition})
    assert not is_new or partition not in table.partitions, f"{partition} was created, and has existed before"
    assert is_new or partition in table.partitions | table.possible, f"{partition} was not created"
    table.partitions.add(partition)
    world.record("create_partition", table)
    check_partitions(world, table)


@define("drop_partition", 1.5, _draw_partition)
def _drop_partition(world: CheckerWorld, arguments: Arguments) -> None:
    table, partition = world.tables.get(PARTITIONED), arguments["partition"]
    if table is None:
        return
    before = deepcopy(table)
    table.erase(key for key in {*table.rows, *table.expired} if part_of(key) == partition)
    table.partitions.discard(partition)
    table.possible.discard(partition)
    dropped = world.table(table.name).drop_partition({PART: partition})
    assert len(dropped) <= 1, f"more than one partition was dropped: {dropped}"
    assert dropped or partition not in before.partitions, f"{partition} exists, and was not dropped"
    for each in dropped:
        check_count(before, each.values[PART], each.rows)
    world.record("drop_partition", table)
    world.check(table.name)
    check_partitions(world, table)


@define("list_partitions", 1, _draw_partition)
def _list_partitions(world: CheckerWorld, arguments: Arguments) -> None:
    table, partition = world.tables.get(PARTITIONED), arguments["partition"]
    if table is None:
        return
    check_partitions(world, table)
    opened, keys = world.table(table.name), {key for key in table.rows if part_of(key) == partition}
    where = f"{PART} = '{partition}'"
    assert (found := opened.count(where)) == len(keys), f"counted {found} rows of {partition} instead of {len(keys)}"
    rows = {row["k"]: row for row in opened.scan(where=where).to_pylist()}
    compare(rows, {key: row for key, row in table.view().shown().items() if key in keys})
    world.record("list_partitions", table)
