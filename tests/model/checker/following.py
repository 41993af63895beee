"""Operations with streams of changes: from every start, left and continued from their tokens."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from aio_client import (
    InvalidRequest,
    InvalidResumeToken,
    PositionOutOfRange,
    RangeNotTracked,
    SchemaMismatch,
    StartFrom,
    StopAt,
    TableNotFound,
    TableRecreated,
)
from tests.model.checker.drawing import EVERY_KIND, table_of
from tests.model.checker.model import KEY, Change, CheckerColumn, Position, Shown, Values, exact, show
from tests.model.checker.operation import Arguments, define
from tests.model.checker.predicates import draw_where, fits_columns, has_columns, matches, names_of, to_expression
from tests.model.checker.unrecorded import must_refuse_changes
from tests.model.checker.world import Kept, compare, differences

if TYPE_CHECKING:
    from random import Random

    from aio_client.sync import Scan
    from tests.model.checker.model import CheckerTable
    from tests.model.checker.predicates import Where
    from tests.model.checker.world import CheckerWorld

_REFUSALS: Final = (InvalidResumeToken, SchemaMismatch, TableNotFound, TableRecreated)


@dataclass(frozen=True)
class _LeftStream:
    """A stream of changes that was left.

    Attributes:
        start: Where it began.
        where: Which rows it follows.
        options: Its other arguments.
        position: The position at which it began.
        columns: The columns that the table had.
        token: Its last resume token.
        seen: How many changes of each key were returned.
        rows: If it began with all rows: those that a reader has.
    """

    start: StartFrom
    where: Where | None
    options: Arguments
    position: Position
    columns: tuple[CheckerColumn, ...]
    token: bytes | None = None
    seen: Counter[int] = field(default_factory=Counter)
    rows: dict[int, Values] | None = None

    def scan(self, world: CheckerWorld) -> Scan:
        """Returns the changes up to the latest one."""
        changes = world.table(self.options["table"]).changes(
            self.start, StopAt.LATEST, where=to_expression(self.where), columns=self.options["columns"]
        )
        changes = changes.with_chunk(rows=self.options["chunk"])
        if self.options["net"]:
            changes = changes.with_catch_up("net", lag_threshold=1)
        return changes if self.token is None else changes.resume_from(self.token)

    def is_altered(self, table: CheckerTable) -> set[bool]:
        """Returns whether a name that the stream uses means something else now: both, if it has in between."""
        return table.is_altered(self.columns, [*(self.options["columns"] or ()), *names_of(self.where)])


@define("keep_time", 1, lambda world, random: _draw_table(world, random))
def _keep_time(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.get(arguments["table"])
    if table is None:
        return
    with world.table(table.name).scan(limit=0).stream() as stream:
        time = stream.taken_at
    world.kept[arguments["as"]] = Kept("time", table.number, table.name, time, table.position())
    world.record("keep_time", table)


def _draw_table(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, EVERY_KIND)
    return None if table is None else {"table": table.name, "as": f"t{world.next_number()}"}


def _draw_begin(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, EVERY_KIND)
    if table is None:
        return None
    names = [column.name for column in table.columns]
    kept_here = [n for n, kept in world.kept.items() if kept.kind in ("offsets", "time") and kept.table == table.number]
    starts = ["latest"] if _is_partly_recorded(table) else ["full", "earliest", "latest", *kept_here[-4:]]
    return {
        "table": table.name,
        "start": "latest"
        if _is_partly_recorded(table)
        else random.choice(["full", "earliest", "latest", *starts[-4:]]),
        "where": draw_where(table.columns, random) if random.random() < 0.4 else None,
        "columns": random.choice([None, None, [KEY, *random.sample(names, random.randrange(len(names) + 1))]]),
        "net": table.has_key and random.random() < 0.3,
        "chunk": random.choice([1, 2, 5]),
        "batches": random.choice([None, 0, 1, 2, 6]),
        "as": f"c{world.next_number()}",
    }


@define("begin_changes", 3, _draw_begin)
def _begin_changes(world: CheckerWorld, arguments: Arguments) -> None:
    table, start, where = world.tables.get(arguments["table"]), arguments["start"], arguments["where"]
    if table is None or not fits_columns(where, table.columns):
        return
    if _is_partly_recorded(table) and (start != "latest" or table.changelog != "full"):
        return
    if not table.has_changes:
        must_refuse_changes(world.table(table.name))
        return
    if not has_columns(table.columns, arguments["columns"]):
        return
    begun = _start_of(world, table, start)
    if begun is None:
        return
    # Which of the rows that have expired a reader has is not known, so no changes follow a full start with a predicate.
    rows: dict[int, Values] | None = {} if start == "full" else None
    left = _LeftStream(begun[0], None if start == "full" else where, arguments, begun[1], table.columns, rows=rows)
    _read(world, table, left, arguments)
    world.record("begin_changes", table)


def _is_partly_recorded(table: CheckerTable) -> bool:
    return table.has_changes and bool(table.partly or table.changelog != "full")


def _start_of(world: CheckerWorld, table: CheckerTable, start: str) -> tuple[StartFrom, Position] | None:
    if start in ("full", "earliest"):
        return (StartFrom.FULL, table.position()) if start == "full" else (StartFrom.EARLIEST, {})
    if start == "latest":
        return StartFrom.LATEST, table.position()
    kept = world.kept.get(start)
    if kept is None or kept.table != table.number or kept.is_lost:
        return None
    return (StartFrom.offsets if kept.kind == "offsets" else StartFrom.timestamp)(kept.value), kept.position


def _draw_resume(world: CheckerWorld, random: Random) -> Arguments | None:
    names = [name for name, kept in world.kept.items() if kept.kind == "changes"]
    if not names:
        return None
    return {
        "kept": random.choice(names[-8:]),
        "batches": random.choice([None, None, 1, 3]),
        "as": f"c{world.next_number()}",
    }


@define("resume_changes", 4, _draw_resume)
def _resume_changes(world: CheckerWorld, arguments: Arguments) -> None:
    kept = world.kept.get(arguments["kept"])
    if kept is None:
        return
    left: _LeftStream = kept.value
    table = world.tables.get(kept.name)
    altered = left.is_altered(table) if table is not None and table.number == kept.table else {True}
    try:
        if altered != {True} and table is not None and not kept.is_lost:
            _read(world, table, left, arguments)
        else:
            left.scan(world).to_pylist()
    except PositionOutOfRange:
        if not kept.is_lost:
            raise
        return
    except _REFUSALS:
        if True not in altered:
            raise
        return
    except InvalidRequest:
        if True not in altered or table is None or table.has_changes:
            raise
        return
    if kept.is_lost:
        # The token may be from before the lost changes.
        del world.kept[arguments["kept"]]
        return
    assert False in altered, f"the token of changes of {kept.name} is taken, although the table is another one now"
    assert table is not None
    world.record("resume_changes", table)


def _read(world: CheckerWorld, table: CheckerTable, left: _LeftStream, arguments: Arguments) -> None:
    """Reads some batches or all, compares them, and keeps the last token."""
    batches, name = arguments["batches"], arguments["as"]
    lacking = table.lacks_changes(left.position)
    try:
        with left.scan(world).stream() as stream:
            parts = [batch.to_pylist() for batch in islice(stream, batches)]
            token, offsets = stream.resume_token, stream.next_offsets
    except RangeNotTracked:
        if True not in lacking:
            raise
        return
    found: defaultdict[int, list[Change]] = defaultdict(list)
    for row in (row for part in parts for row in part):
        shown = {name: value for name, value in row.items() if not name.startswith("_")}
        found[row[KEY]].append((row["_change_type"], shown))
    is_complete = batches is None or len(parts) < batches
    assert False in lacking or not is_complete, (
        "rows were written without their changes, and the stream has not said so"
    )
    rows = None if left.rows is None else _replay(table, left.rows, found)
    if rows is None:
        _compare(table, left, found, is_complete=is_complete)
    elif is_complete:
        _compare_rows(table, left, rows)
    if is_complete:
        # After the last change, the offsets are as good as a token.
        kept = Kept("offsets", table.number, table.name, offsets, table.position(), table.view())
        world.kept[f"{name} offsets"] = kept
    if token is not None:
        seen = left.seen + Counter({key: len(changes) for key, changes in found.items()})
        value = replace(left, token=token, seen=seen, rows=rows)
        world.kept[name] = Kept("changes", table.number, table.name, value, table.position())


def _compare(table: CheckerTable, left: _LeftStream, found: dict[int, list[Change]], *, is_complete: bool) -> None:
    names = left.options["columns"]

    def forms(key: int, changes: list[Change]) -> list[list[Change]]:
        before = left.seen[key]
        end = None if is_complete else before + len(found.get(key, ()))
        matching = _matching(changes, left.where)
        all_ = [matching, _net(matching)] if left.options["net"] else [matching]
        if left.options["net"] and left.token is not None:
            # One net change came before the token, and others come after it: only where they lead to is known.
            mine = found.get(key, [])
            leads = exact(_after(mine)) == exact(_after(_project(matching, names)))
            is_right = not is_complete or (leads if mine else bool(before) or not _net(matching))
            return [mine if is_right else _project(matching, names)]
        return [_project(each, names)[before:end] for each in all_]

    wrong = table.wrong_changes(left.position, found, forms)
    assert not wrong, differences({key: found.get(key, []) for key in wrong}, wrong)


def _after(changes: list[Change]) -> Shown | None:
    """Returns the row after some changes; None if it is deleted."""
    return changes[-1][1] if changes and changes[-1][0] in ("+I", "+U") else None


def _project(changes: list[Change], names: list[str] | None) -> list[Change]:
    if names is None:
        return changes
    return [(kind, {name: row[name] for name in (KEY, *names)}) for kind, row in changes]


def _matching(changes: list[Change], where: Where | None) -> list[Change]:
    """Returns the changes of the rows that match: a row that ceases to match is deleted."""
    found, before = list[Change](), False
    for kind, row in changes:
        if kind == "-U":
            before = matches(where, row)
            old = row
        elif kind == "+U":
            after = matches(where, row)
            if before:
                found.append(("-U" if after else "-D", old))
            if after:
                found.append(("+U" if before else "+I", row))
        elif matches(where, row):
            found.append((kind, row))
    return found


def _net(changes: list[Change]) -> list[Change]:
    """Returns one change from the row before all changes to the row after them."""
    if not changes:
        return []
    before = changes[0][1] if changes[0][0] in ("-U", "-D") else None
    after = _after(changes)
    if exact(before) == exact(after):
        return []
    if before is None or after is None:
        return [("-D", before)] if before is not None else [("+I", after or {})]
    return [("-U", before), ("+U", after)]


def _replay(table: CheckerTable, rows: dict[int, Values], found: dict[int, list[Change]]) -> dict[int, Values]:
    """Returns the rows that a reader has after some changes."""
    after = dict(rows)
    for key, changes in found.items():
        for kind, row in changes:
            # The row before an update goes before the row after it comes.
            is_expired = kind == "+I" and key in table.silenced
            assert is_expired or (key in after) == (kind in ("-U", "-D")), f"{kind} of {row} does not fit"
            if kind in ("+I", "+U"):
                after[key] = {column.number: row.get(column.name) for column in table.columns}
            else:
                del after[key]
    return after


def _compare_rows(table: CheckerTable, left: _LeftStream, rows: dict[int, Values]) -> None:
    """Compares the rows that a reader has with the table. It may still have rows that have expired."""
    names = left.options["columns"]
    columns = [column for column in table.columns if names is None or column.name in names]
    key_names = table.key if names is None else (KEY,)
    found: dict[int, Shown] = {key: show(columns, key, values, key_names) for key, values in rows.items()}
    expected: dict[int, Any] = {key: show(columns, key, values, key_names) for key, values in table.rows.items()}
    # A stream without changes for them begins without them.
    remains = {} if table.is_silent and left.token is None else table.remains()
    for key, row in remains.items():
        if exact(found.get(key)) == exact({name: row[name] for name in found.get(key, ())}):
            expected[key] = found[key]
    compare(found, expected)
