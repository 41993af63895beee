"""Operations that undo what a writer has written since a position."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Final

from aio_client import (
    InvalidRequest,
    PositionOutOfRange,
    RangeNotTracked,
    TableNotFound,
    TableRecreated,
)
from tests.model.checker.drawing import kept_of
from tests.model.checker.operation import Arguments, define

if TYPE_CHECKING:
    from random import Random

    from tests.model.checker.model import CheckerTable, Position, Values
    from tests.model.checker.world import CheckerWorld

_NO_CHANGES: Final = (0, 0)


def _draw_undo(world: CheckerWorld, random: Random) -> Arguments | None:
    name, writer = kept_of("offsets", world, random), random.choice(["w1", "w2"])
    table = None if name is None else world.tables.get(world.kept[name].name)
    if name is None or table is None:
        return None
    # Mostly if there is something to undo.
    is_written = any(_plan(table, world.kept[name].position, writer))
    return {"kept": name, "writer": writer} if is_written or random.random() < 0.2 else None


@define("undo", 4, _draw_undo)
def _undo(world: CheckerWorld, arguments: Arguments) -> None:
    kept, writer = world.kept.get(arguments["kept"]), arguments["writer"]
    table = None if kept is None else world.tables.get(kept.name)
    # It depends on when the server removes expired rows what becomes of them.
    if kept is None or table is None or not table.has_key or table.ttl is not None:
        return
    is_own, lacking = table.number == kept.table, table.lacks_changes(kept.position)
    if table.is_partly_recorded(kept.position) or table.changelog != "full":
        lacking = {True}
    try:
        report = world.table(table.name).undo(writer, kept.value)
    except (TableNotFound, TableRecreated):
        if is_own:
            raise
        return
    except (RangeNotTracked, InvalidRequest):
        if is_own and True not in lacking:
            raise
        world.check(table.name)
        return
    except PositionOutOfRange:
        if is_own and not kept.is_lost:
            raise
        return
    assert not kept.is_lost, "log offsets in lost changes are taken for an undo"
    assert is_own, "log offsets of another table are taken for an undo"
    assert False in lacking, "rows were written without their changes, and an undo has not said so"
    restored, conflicts = _plan(table, kept.position, writer)
    deleted = [key for key, values in restored.items() if values is None and key in table.rows]
    counts = (sum(values is not None for values in restored.values()), len(deleted), conflicts)
    found = (report.restored, report.deleted, report.conflicts)
    # Of an undo that the client repeats, the report has what the last attempt has done.
    most = all(map(operator.le, found, counts)) if world.failing_disk.has_failed else False
    assert most or found == counts, f"an undo has {found} rows restored, deleted and in conflict, not {counts}"
    table.author = f"undo/{writer}"
    for key, values in restored.items():
        table.put(key, values)
    table.author = ""
    world.record("undo", table)
    world.check(table.name)


def _plan(table: CheckerTable, position: Position, writer: str) -> tuple[dict[int, Values | None], int]:
    """Returns what each row of a writer is restored to, None if it is deleted, and the number of conflicts."""
    restored, conflicts = dict[int, "Values | None"](), 0
    for key, authors in table.authors.items():
        since = range(position.get(key, _NO_CHANGES)[1], len(authors))
        own = [number for number in since if authors[number] == writer]
        undone = [number for number in since if authors[number] == f"undo/{writer}"]
        if not own or (undone and undone[-1] > own[-1]):
            continue
        others = [number for number in since if number > own[0] and authors[number] not in (writer, f"undo/{writer}")]
        kind, before = table.changes[key][own[0]]
        if others:
            conflicts += 1
        else:
            restored[key] = None if kind == "+I" else before
    return restored, conflicts
