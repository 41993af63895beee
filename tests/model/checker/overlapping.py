"""Operations that read while a client writes: each read shows one instant, with all that was answered before it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from tests.model.checker.drawing import KEYED, KEYS, table_of, value_of
from tests.model.checker.model import ModelView, Shown, exact, key_values
from tests.model.checker.operation import Arguments, define
from tests.model.checker.predicates import draw_where, fits_columns, matches, to_expression
from tests.model.checker.queries import first_rows
from tests.model.checker.writes import fits

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from aio_client.sync import Table
    from tests.model.checker.model import CheckerTable
    from tests.model.checker.world import CheckerWorld


def _draw_read(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, KEYED)
    if table is None or not table.columns:
        return None
    rows = [
        {**key_values(table.key, key), **{column.name: value_of(column.kind, random) for column in table.columns}}
        for key in random.choices(range(KEYS), k=30)
    ]
    where = draw_where(table.columns, random)
    by, n = random.choice(table.columns).name, random.choice([1, 3, 100])
    return {"table": table.name, "rows": rows, "where": where, "by": by, "n": n}


@define("read_during_writes", 1.5, _draw_read)
def _read_during_writes(world: CheckerWorld, arguments: Arguments) -> None:
    table, (rows, where, by) = (
        world.tables.get(arguments["table"]),
        (arguments[each] for each in ("rows", "where", "by")),
    )
    if table is None or not fits(table, rows, complete=True) or not fits_columns(where, table.columns):
        return
    if by not in {column.name for column in table.columns}:
        return
    opened, begun, answered, failures = world.table(table.name), [0], [0], list[BaseException]()

    def write() -> None:
        try:
            for number, row in enumerate(rows, 1):
                begun[0] = number
                opened.upsert([row])
                answered[0] = number
        except BaseException as error:  # raised below, in the thread of the checker
            failures.append(error)

    views = _views(table, rows)
    writer = threading.Thread(target=write)
    writer.start()
    reads = list[tuple[str, int, Any, int]]()
    while writer.is_alive():
        for name, read in _READS.items():
            reads.append((name, answered[0], read(opened, arguments), begun[0]))
    writer.join()
    if failures:
        raise failures[0]
    expected = [_expected(view, arguments) for view in views]
    for name, least, found, most in reads:
        allowed = [each[name] for each in expected[least : most + 1]]
        assert exact(found) in exact(allowed), f"{name} returned {found}, not one of {allowed}"
    world.record("read_during_writes", table)
    world.check(table.name)


def _views(table: CheckerTable, rows: list[Shown]) -> list[ModelView]:
    """Writes rows one after another to the model, and returns what it had before and after each."""
    views = [table.view()]
    for row in rows:
        table.upsert([row])
        views.append(table.view())
    return views


_READS: Final[dict[str, Callable[[Table, Arguments], Any]]] = {
    "scan": lambda opened, asked: opened.scan(where=to_expression(asked["where"])).ordered().to_pylist(),
    "first": lambda opened, asked: opened.top_n(asked["n"], asked["by"], to_expression(asked["where"])).to_pylist(),
    "count": lambda opened, asked: opened.count(to_expression(asked["where"])),
}


def _expected(view: ModelView, asked: Arguments) -> dict[str, Any]:
    rows = [row for row in view.in_order() if matches(asked["where"], row)]
    first = first_rows(rows, asked["by"], asked["n"], descending=True, ties="key")
    return {"scan": rows, "first": first, "count": len(rows)}
