"""Operations that write only if rows have not changed since a position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aio_client import PositionOutOfRange, TableNotFound, TableRecreated, WriteConflict
from tests.model.checker.drawing import kept_of, rows_of
from tests.model.checker.model import KEY
from tests.model.checker.operation import Arguments, define
from tests.model.checker.writes import DELETING, fits

if TYPE_CHECKING:
    from random import Random

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
    if kept is None or table is None or not table.has_changes or not fits(table, rows, complete=True):
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
