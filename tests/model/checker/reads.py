"""Operations that read rows and compare them with the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.model.checker.drawing import KEYED, KEYS, PARTITIONED, keys_of, table_of
from tests.model.checker.model import PART, part_of
from tests.model.checker.operation import Arguments, define
from tests.model.checker.world import by_key, compare

if TYPE_CHECKING:
    from random import Random

    from tests.model.checker.model import CheckerTable
    from tests.model.checker.world import CheckerWorld


def _draw_get(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, KEYED)
    return None if table is None else {"table": table.name, "keys": keys_of(random)}


@define("get", 2, _draw_get)
def _get(world: CheckerWorld, arguments: Arguments) -> None:
    table, keys = world.tables.get(arguments["table"]), arguments["keys"]
    if table is None:
        return
    opened, expected = world.table(table.name), table.view().shown()
    if len(keys) == 1:
        compare({keys[0]: opened.get(table.keys(keys)[0])}, {keys[0]: expected.get(keys[0])})
    rows, wanted = (
        by_key(opened.lookup(table.keys(keys)).to_pylist()),
        {key: expected[key] for key in keys if key in expected},
    )
    compare(rows, wanted)
    world.record("get", table)


def check_definition(world: CheckerWorld, table: CheckerTable) -> None:
    """Compares the columns and indexes of a table with the model, and what is stored with itself."""
    opened, names = world.table(table.name), {column.number: column.name for column in table.columns}
    assert opened.schema.equals(world.schema(table.columns, table.key)), f"{table.name} has the columns {opened.schema}"
    defaults = {column.name: column.default for column in table.columns if column.default is not None}
    compare(opened.column_defaults, defaults)
    assert opened.column_comments == {column.name: column.comment for column in table.columns if column.comment}
    indexes = {tuple(names[number] for number in index) for index in table.indexes}
    assert {*opened.indexes} == indexes, f"{table.name} has the indexes {opened.indexes}, not {indexes}"
    changelog = opened.options.get("changelog", "full")
    assert changelog == table.changelog, f"the changelog of {table.name} is {changelog}, not {table.changelog}"
    assert all(status.failure is None for status in opened.index_status())
    for bucket in world.client.check_table(table.name):
        assert bucket.is_consistent, str(bucket)
        assert all(index.entries == bucket.rows for index in bucket.indexes if index.ready), str(bucket)


def check_partitions(world: CheckerWorld, table: CheckerTable) -> None:
    """Compares the partitions of a table, and how many rows each has, with the model."""
    listed = {each.values[PART]: each.rows for each in world.table(table.name).partitions()}
    assert [*listed] == sorted(listed), f"the partitions are not in order: {[*listed]}"
    assert table.partitions <= listed.keys() <= table.partitions | table.possible, (
        f"found the partitions {[*listed]}, not {sorted(table.partitions)}"
    )
    for partition, rows in listed.items():
        check_count(table, partition, rows)


def check_count(table: CheckerTable, partition: str, rows: int | None) -> None:
    """Compares the number of rows of a partition. The server need not know it after writes that are not tracked."""
    least = sum(part_of(key) == partition for key in table.rows)
    most = least + sum(part_of(key) == partition for key in table.expired)
    if rows is None:
        assert table.marked[1], f"the rows of {partition} are not counted"
    else:
        assert least <= rows <= most, f"{partition} has {rows} rows instead of {least} to {most}"


def check_all(world: CheckerWorld) -> None:
    """Compares every table with the model, and every key by itself. What is stored must be consistent."""
    names = {table.name for table in world.client.tables()}
    assert names == {*world.tables}, f"the tables are {sorted(names)}, not {sorted(world.tables)}"
    for table in world.tables.values():
        world.check(table.name)
        check_definition(world, table)
        if table.name == PARTITIONED:
            check_partitions(world, table)
        if not table.has_key:
            continue
        keys = table.keys(range(KEYS))
        found: dict[int, Any] = by_key(world.table(table.name).lookup(keys).to_pylist())
        compare(found, table.view().shown())
