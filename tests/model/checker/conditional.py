"""Operations that write only if rows have not changed since a position."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from aio_client import PositionOutOfRange, TableNotFound, TableRecreated, WriteConflict
from tests.model.checker.drawing import KEYED, KEYS, kept_of, rows_of, table_of
from tests.model.checker.model import KEY, key_values
from tests.model.checker.operation import Arguments, define
from tests.model.checker.writes import DELETING, fits

if TYPE_CHECKING:
    from random import Random

    from tests.model.checker.model import Shown
    from tests.model.checker.world import CheckerWorld


def _draw_conditional(world: CheckerWorld, random: Random) -> Arguments | None:
    name = kept_of("offsets", world, random)
    table = None if name is None else world.tables.get(world.kept[name].name)
    if table is None or not table.has_key:
        return None
    return {"kept": name, "rows": rows_of(table, random)[:3], "delete": random.random() < 0.3}


@define("write_if_unchanged", 2.5, _draw_conditional)
def _write_if_unchanged(world: CheckerWorld, arguments: Arguments) -> None:
    kept, rows = world.kept.get(arguments["kept"]), arguments["rows"]
    table = None if kept is None else world.tables.get(kept.name)
    if kept is None or table is None or not fits(table, rows, complete=True):
        return
    is_delete = arguments["delete"] and table.engine in DELETING
    keys, opened = [row[KEY] for row in rows], world.table(table.name)
    changed = [table.changed(key, kept.position) for key in keys]
    try:
        if is_delete:
            opened.delete(table.keys(keys), if_version=kept.value)
        else:
            opened.upsert(rows, if_version=kept.value)
    except WriteConflict:
        assert table.number == kept.table
        assert any(True in each for each in changed), "no row has changed, and a conditional write is refused"
        world.check(table.name)
        return
    except PositionOutOfRange:
        # Only the buckets of the rows have a condition.
        if not kept.is_lost:
            raise
        return
    except (TableNotFound, TableRecreated):
        if table.number == kept.table:
            raise
        return
    assert table.number == kept.table, "log offsets of another table are taken as a condition"
    assert all(False in each for each in changed), "a row has changed, and a conditional write is not refused"
    if is_delete:
        table.delete(keys)
    else:
        table.upsert(rows)
    world.record("write_if_unchanged", table)
    world.check(table.name)


def _draw_race(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, KEYED)
    # With other engines, some of the rows change nothing.
    if table is None or table.engine != "last_row":
        return None
    return {"table": table.name, "key": random.randrange(KEYS), "writers": 4}


@define("race_conditional_writes", 1.5, _draw_race)
def _race(world: CheckerWorld, arguments: Arguments) -> None:
    """Of several writers that have read the same version of a row, one changes it."""
    table, key = world.tables.get(arguments["table"]), arguments["key"]
    column = None if table is None else next((each for each in table.columns if each.kind == "int"), None)
    if table is None or column is None or table.engine != "last_row":
        return
    opened, others = world.table(table.name), {each.name: None for each in table.columns}
    version = opened.lookup(table.keys([key]), with_version=True).log_offsets
    # Greater than before, so that each of them is a change.
    first = (table.rows.get(key, {}).get(column.number) or 0) + 1
    rows = [{**key_values(table.key, key), **others, column.name: first + n} for n in range(arguments["writers"])]

    def write(row: Shown) -> Shown | None:
        try:
            opened.upsert([row], if_version=version)
        except WriteConflict:
            return None
        return row

    with ThreadPoolExecutor(len(rows)) as threads:
        written = [row for row in threads.map(write, rows) if row is not None]
    assert len(written) == 1, f"{len(written)} of {len(rows)} writers have changed the same version of a row: {written}"
    table.upsert(written)
    world.record("race_conditional_writes", table)
    world.check(table.name)
