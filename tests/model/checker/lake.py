"""Slow operations with published tables: versions in open formats, and reads that combine them with the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aio_client import PositionOutOfRange, StartFrom, StopAt, TableRecreated
from scankv.lake.formats import open_lake_table
from scankv.lake.publisher import PublishOptions, publish
from tests.model.checker.copies import loop_of
from tests.model.checker.drawing import table_of
from tests.model.checker.model import KEY, Shown, Values, exact, show
from tests.model.checker.operation import Arguments, define
from tests.model.checker.predicates import draw_where, fits_columns, matches, to_expression
from tests.model.checker.world import Kept, by_key, compare
from tests.support.lake_readers import reader

if TYPE_CHECKING:
    from random import Random

    from tests.model.checker.world import CheckerWorld


@dataclass
class _Lake:
    """Where a table is published.

    Attributes:
        uri: Its location.
        format: Its format.
        versions: The table of each version by its number, and the rows that it had.
    """

    uri: str
    format: str
    versions: dict[int, tuple[int, dict[int, Values]]] = field(default_factory=dict)


def _draw_publish(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random)
    if table is None:
        return None
    format_ = random.choice(["delta", "delta", "iceberg", "parquet"])
    options = {"file_rows": random.choice([1, 5, 1000]), "masks": format_ == "delta" and random.random() < 0.5}
    return {"table": table.name, "format": format_, "options": options}


@define("publish", 4, _draw_publish, profile="slow")
def _publish(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.get(arguments["table"])
    if table is None:
        return
    name = f"{arguments['format']} of {table.name}"
    if name not in world.kept:
        lake = _Lake(str(world.new_directory()), arguments["format"])
        world.kept[name] = Kept("lake", table.number, table.name, lake)
    lake, loop = world.kept[name].value, loop_of(world)
    target, options = open_lake_table(lake.uri, lake.format), PublishOptions(**arguments["options"])
    report = loop.run(lambda: publish(loop.client, table.name, target, options))
    if report.mode == "unchanged":
        assert exact(lake.versions[report.version]) == exact((table.number, table.rows)), "the table has changed"
    world.kept[name].is_lost = False
    lake.versions[report.version] = (table.number, dict(table.rows))
    found, expected = by_key(reader(lake.format, lake.uri).read().to_pylist()), table.view().shown()
    compare(found, expected)
    world.record("publish", table)


def _draw_read(world: CheckerWorld, random: Random) -> Arguments | None:
    names = [name for name, kept in world.kept.items() if kept.kind == "lake" and kept.name in world.tables]
    if not names:
        return None
    name = random.choice(names)
    kept = world.kept[name]
    where = draw_where(world.tables[kept.name].columns, random)
    return {"kept": name, "where": where, "version": random.choice([None, *kept.value.versions])}


@define("read_published", 5, _draw_read, profile="slow")
def _read_published(world: CheckerWorld, arguments: Arguments) -> None:
    kept, where, version = world.kept.get(arguments["kept"]), arguments["where"], arguments["version"]
    table = None if kept is None else world.tables.get(kept.name)
    if kept is None or table is None or not fits_columns(where, table.columns):
        return
    lake: _Lake = kept.value
    if kept.is_lost and version is None:
        return
    scan = world.table(table.name).scan(where=to_expression(where)).read_path("lake", lake.uri)
    number, rows = table.number, table.rows
    if version is not None:
        if version not in lake.versions:
            return
        scan, (number, rows) = scan.as_of(version), lake.versions[version]
    try:
        found = by_key(scan.to_pylist())
    except TableRecreated:
        assert number != table.number, "a version of this table is not read"
        return
    assert number == table.number, "a version of another table is read"
    shown = {key: show(table.columns, key, values) for key, values in rows.items()}
    expected = {key: row for key, row in shown.items() if matches(where, row)}
    compare(found, expected)
    world.record("read_published", table)


@define("follow_published", 3, _draw_read, profile="slow")
def _follow_published(world: CheckerWorld, arguments: Arguments) -> None:
    kept = world.kept.get(arguments["kept"])
    table = None if kept is None else world.tables.get(kept.name)
    if kept is None or table is None:
        return
    lake: _Lake = kept.value
    scan = world.table(table.name).changes(StartFrom.lake(lake.uri), StopAt.LATEST)
    latest = lake.versions[max(lake.versions)][0]
    try:
        changes = scan.to_pylist()
    except TableRecreated:
        assert latest != table.number, "the changes of this table are not read"
        return
    except PositionOutOfRange:
        assert kept.is_lost, "the changes of this table are not read"
        return
    assert not kept.is_lost, "a reader continues from lost changes"
    assert latest == table.number, "the changes of another table are read"
    found = _rows_after(changes)
    expected = table.view().shown()
    expected |= {key: row for key, row in table.remains().items() if key in found}
    compare(found, expected)
    world.record("follow_published", table)


def _rows_after(changes: list[Shown]) -> dict[int, Shown]:
    """Returns the rows that a reader has after some changes."""
    found: dict[int, Shown] = {}
    for change in changes:
        row = {name: value for name, value in change.items() if not name.startswith("_")}
        if change["_change_type"] in ("+I", "+U"):
            found[row[KEY]] = row
        else:
            del found[row[KEY]]
    return found
