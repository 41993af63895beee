"""Operations with what clients keep: log offsets, pinned snapshots and consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aio_client import (
    PositionOutOfRange,
    RangeNotTracked,
    ServerRefused,
    SnapshotLost,
    StartFrom,
    StopAt,
    TableNotFound,
    TableRecreated,
)
from tests.model.checker.drawing import EVERY_KIND, LOG, table_of
from tests.model.checker.model import KEY
from tests.model.checker.operation import Arguments, define
from tests.model.checker.unrecorded import apply_changes, known_rows
from tests.model.checker.world import Kept, by_key, changes_by_key, compare, differences

if TYPE_CHECKING:
    from random import Random

    from aio_client.sync import Scan, Table
    from tests.model.checker.model import CheckerTable, Position
    from tests.model.checker.world import CheckerWorld


_PIN_SECONDS: Final = 604_800.0


def _draw_take(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, EVERY_KIND)
    return None if table is None else {"table": table.name, "as": f"p{world.next_number()}"}


@define("keep_offsets", 1.5, _draw_take)
def _keep_offsets(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.get(arguments["table"])
    if table is None:
        return
    value = world.table(table.name).log_offsets()
    world.kept[arguments["as"]] = Kept("offsets", table.number, table.name, value, table.position(), table.view())
    world.record("keep_offsets", table)


def _draw_kept(kind: str, world: CheckerWorld, random: Random) -> Arguments | None:
    names = [name for name, kept in world.kept.items() if kept.kind == kind]
    return {"kept": random.choice(names)} if names else None


@define("read_from_offsets", 2, lambda world, random: _draw_kept("offsets", world, random))
def _read_from_offsets(world: CheckerWorld, arguments: Arguments) -> None:
    kept = world.kept.get(arguments["kept"])
    if kept is None:
        return
    table = world.tables.get(kept.name)
    if table is None or table.number != kept.table:
        _must_refuse(world, kept)
        return
    if not table.has_changes:
        return
    scan = world.table(table.name).changes(StartFrom.offsets(kept.value), StopAt.LATEST)
    if kept.is_lost:
        _must_be_lost(scan)
        return
    lacking = table.lacks_changes(kept.position)
    try:
        rows = scan.to_pylist()
        assert False in lacking, "rows were written without their changes, and the stream has not said so"
        if table.is_partly_recorded(kept.position) and not table.may_expire:
            found, expected = known_rows(table, kept), table.view().shown()
            apply_changes(found, rows)
            compare(found, expected)
        _compare_changes(rows, table, kept)
    except RangeNotTracked:
        if True not in lacking:
            raise
    world.record("read_from_offsets", table)


def _must_refuse(world: CheckerWorld, kept: Kept) -> None:
    """The table was dropped, and may have been created again: its positions must not be taken."""
    try:
        world.table(kept.name).changes(StartFrom.offsets(kept.value), StopAt.LATEST).to_arrow()
    except (TableNotFound, TableRecreated):
        return
    raise AssertionError(f"{kept.name} was dropped, and log offsets from before are taken")


def _must_be_lost(scan: Scan) -> None:
    """The position is in changes that a recovery has lost."""
    try:
        scan.to_arrow()
    except PositionOutOfRange:
        return
    raise AssertionError("a reader continues from lost changes")


def _compare_changes(rows: list[dict[str, Any]], table: CheckerTable, kept: Kept) -> None:
    wrong, found = _wrong(rows, table, kept.position)
    assert not wrong, differences({key: found.get(key, []) for key in wrong}, wrong)


def _wrong(
    rows: list[dict[str, Any]], table: CheckerTable, position: Position
) -> tuple[dict[int, Any], dict[int, Any]]:
    """Returns the changes that were expected of some keys and not found, and all that were found."""
    found = changes_by_key(rows)
    return table.wrong_changes(position, found), found


@define("pin", 1, _draw_take)
def _pin(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.get(arguments["table"])
    if table is None:
        return
    snapshot, taken = world.table(table.name).snapshot(ttl=_PIN_SECONDS), world.moment()
    world.kept[arguments["as"]] = Kept("snapshot", table.number, table.name, snapshot, view=table.view(), taken=taken)
    world.record("pin", table)


@define("read_pinned", 2, lambda world, random: _draw_kept("snapshot", world, random))
def _read_pinned(world: CheckerWorld, arguments: Arguments) -> None:
    kept = world.kept.get(arguments["kept"])
    if kept is None:
        return
    table = world.tables.get(kept.name)
    is_same = table is not None and table.number == kept.table
    try:
        found = by_key(world.table(kept.name).scan().as_of(kept.value).to_pylist())
    except SnapshotLost:
        where, time = world.moment()
        is_old = where != kept.taken[0] or time - kept.taken[1] > _PIN_SECONDS / 2
        assert is_old or not is_same, f"a snapshot of {kept.name} is lost before its time"
        del world.kept[arguments["kept"]]
        return
    except ServerRefused:
        if is_same:
            raise
        return
    assert is_same, f"{kept.name} was dropped, and a snapshot from before can be read"
    assert table is not None
    assert kept.view is not None
    compare(found, kept.view.shown())
    world.record("read_pinned", table)


def _must_be_accepted(scan: Scan) -> None:
    """The consumer may have read changes that the restored table does not have."""
    try:
        scan.to_arrow()
    except TableRecreated:
        return
    raise AssertionError("a restored consumer continues without being accepted")


def _accept(opened: Table, consumer: str) -> bool:
    """Accepts a restored consumer. Returns whether its table has its position."""
    try:
        opened.accept_consumer(consumer)
    except PositionOutOfRange:
        return False
    return True


def _draw_version(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, EVERY_KIND)
    return None if table is None else {"table": table.name, "as": f"v{world.next_number()}"}


@define("keep_version", 1, _draw_version)
def _keep_version(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.get(arguments["table"])
    if table is None:
        return
    counted = world.table(table.name).count_if_changed(None)
    assert counted is not None
    assert counted.value == len(table.rows), f"counted {counted.value} rows instead of {len(table.rows)}"
    world.kept[arguments["as"]] = Kept("version", table.number, table.name, (counted.version, table.version))
    world.record("keep_version", table)


@define("ask_since_version", 1.5, lambda world, random: _draw_kept("version", world, random))
def _ask_since_version(world: CheckerWorld, arguments: Arguments) -> None:
    kept = world.kept.get(arguments["kept"])
    table = None if kept is None else world.tables.get(kept.name)
    if kept is None or table is None:
        return
    version, then = kept.value
    opened = world.table(table.name)
    answers = (
        opened.count_if_changed(version),
        opened.aggregate_if_changed(version, {KEY: "count"}),
        opened.top_n_if_changed(version, 5, KEY),
    )
    with opened.scan().if_changed_since(version).stream() as stream:
        rows = by_key([row for batch in stream for row in batch.to_pylist()])
        is_unchanged, current = stream.unchanged, stream.version
    assert {each is None for each in answers} == {is_unchanged}, "some queries have changed, and others have not"
    if is_unchanged:
        is_same = kept.table == table.number and then == table.version
        assert is_same, f"{table.name} has changed since the version, and the server says that it has not"
    else:
        _compare_answers(table, answers, current)
        compare(rows, table.view().shown())
    # While no row expires, nothing changes.
    assert table.ttl is not None or opened.count_if_changed(current) is None, "the current version has changed"
    world.record("ask_since_version", table)


def _compare_answers(table: CheckerTable, answers: tuple[Any, Any, Any], version: bytes | None) -> None:
    counted, summed, first = answers
    assert table.ttl is not None or {each.version for each in answers} == {version}, "queries have other versions"
    expected = (len(table.rows), [{f"{KEY}_count": len(table.rows)}], sorted(table.rows, reverse=True)[:5])
    found = (counted.value, summed.value.to_pylist(), first.value[KEY].to_pylist())
    assert found == expected, f"found {found}, expected {expected}"


def _draw_consume(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, (LOG,))
    if table is None:
        return None
    return {"table": table.name, "consumer": random.choice(["c1", "c2"]), "commit": random.random() < 0.7}


@define("consume", 2, _draw_consume)
def _consume(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.get(arguments["table"])
    if table is None:
        return
    name = f"{table.number} {arguments['consumer']}"
    kept = world.kept.get(name)
    if kept is None:
        kept = world.kept[name] = Kept("consumer", table.number, table.name, None)
    opened, id_ = world.table(table.name), arguments["consumer"]
    scan = opened.changes(StartFrom.EARLIEST, StopAt.LATEST, consumer_id=id_)
    if kept.value == "restored or gone" and id_ not in {each.id for each in opened.consumers()}:
        kept.value, kept.position, kept.earlier = None, {}, []
    earlier = kept.earlier if kept.value == "restored or gone" else []
    if kept.value is not None:
        _must_be_accepted(scan)
        # It may continue after changes that were lost before the restore.
        is_lost = not _accept(opened, id_)
        assert kept.is_lost or not is_lost, "the position of a restored consumer is lost"
        kept.value, kept.is_lost = None, is_lost
    elif kept.is_lost:
        _must_be_lost(scan)
    if kept.is_lost:
        opened.reset_consumer(id_, StartFrom.EARLIEST)
        kept.is_lost, kept.position, kept.earlier = False, {}, []
    with scan.stream() as stream:
        rows = [row for batch in stream for row in batch.to_pylist()]
        kept.position = next((each for each in earlier if not _wrong(rows, table, each)[0]), kept.position)
        _compare_changes(rows, table, kept)
        if arguments["commit"]:
            stream.commit()
            kept.earlier, kept.position = [*kept.earlier, kept.position], table.position()
    world.record("consume", table)
