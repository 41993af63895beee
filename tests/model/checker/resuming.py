"""Operations with resume tokens: a scan is left, and continued later from its token."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from aio_client import InvalidResumeToken, NoPrimaryKey, SchemaMismatch, SnapshotLost, TableNotFound, UsageError
from tests.model.checker.drawing import EVERY_KIND, table_of
from tests.model.checker.model import KEY, CheckerColumn, Shown, exact, show
from tests.model.checker.operation import Arguments, define
from tests.model.checker.predicates import has_columns, matches, names_of
from tests.model.checker.queries import draw_source, predicate_of, source_of
from tests.model.checker.world import Kept

if TYPE_CHECKING:
    from random import Random

    from aio_client.sync import Scan, Snapshot
    from tests.model.checker.model import CheckerTable, ModelView
    from tests.model.checker.world import CheckerWorld

_START: Final = (-1, 0)
_END: Final = (1_000_000, 0)
_REFUSALS: Final = (InvalidResumeToken, SchemaMismatch, TableNotFound)


@dataclass(frozen=True)
class _LeftScan:
    """A scan that was left.

    Attributes:
        arguments: Those of the operation that began it.
        snapshot: What it reads. None: the live table.
        view: The rows of the snapshot.
        columns: The columns that it reads.
        token: Its last resume token.
        last: The place of the last row that was returned: its bucket, if the order depends on it, and its key.
        until: The place of the row that would have come next. The token is somewhere between both: it may have passed
            rows that did not match.
        rows: How many rows were returned.
        expired: The keys whose rows had expired by then, and when those had been written.
    """

    arguments: Arguments
    snapshot: Snapshot | None
    view: ModelView | None
    columns: tuple[CheckerColumn, ...]
    token: bytes
    last: tuple[int, int]
    until: tuple[int, int]
    rows: int
    expired: frozenset[tuple[int, float]]

    def scan(self, world: CheckerWorld, name: str) -> Scan:
        """Returns the scan of a table, without the token."""
        scan = _scan(world, name, self.arguments)
        return scan if self.snapshot is None else scan.as_of(self.snapshot)

    def is_altered(self, table: CheckerTable) -> set[bool]:
        """Returns whether a name that the scan uses means something else now: both, if it has in between."""
        if self.snapshot is not None:
            return {False}
        names = self.arguments["columns"]
        return table.is_altered(self.columns, names and [*names, *names_of(self.arguments["where"])])


def _scan(world: CheckerWorld, name: str, arguments: Arguments) -> Scan:
    scan = world.table(name).scan(arguments["columns"], where=predicate_of(arguments)).limit(arguments["limit"])
    scan = scan.with_chunk(rows=arguments["chunk"]).read_path(arguments.get("path", "auto"))
    scan = scan.ordered() if arguments["order"] == "key" else scan
    return scan.reverse() if arguments["reverse"] else scan


def _draw_begin(world: CheckerWorld, random: Random) -> Arguments | None:
    source = draw_source(world, random)
    if source is None:
        return None
    names = [column.name for column in source[1].columns]
    return {
        **source[2],
        "columns": random.choice([None, [KEY, *random.sample(names, random.randrange(len(names) + 1))]]),
        "order": random.choice(["bucket", "key"] if source[1].has_key else ["bucket"]),
        "reverse": random.random() < 0.4,
        "limit": random.choice([None, None, 7]),
        "chunk": random.choice([1, 2, 5]),
        "path": random.choice(["auto", "rocksdb"]),
        "batches": random.choice([1, 1, 2, 4]),
        "as": f"s{world.next_number()}",
    }


@define("begin_scan", 2.5, _draw_begin)
def _begin_scan(world: CheckerWorld, arguments: Arguments) -> None:
    source = source_of(world, arguments)
    if source is None or not has_columns(source[1].columns, arguments["columns"]):
        return
    table, _, snapshot = source
    scan = _scan(world, table.name, arguments)
    view = None if snapshot is None else source[1]
    expired = frozenset((key, written) for key, (_, written) in table.expired.items())
    left = _LeftScan(arguments, snapshot, view, source[1].columns, b"", _START, _START, 0, expired)
    try:
        _read(world, table, scan if snapshot is None else scan.as_of(snapshot), left, arguments)
    except SnapshotLost:
        assert snapshot is not None
        del world.kept[arguments["snapshot"]]
    world.record("begin_scan", table)


def _draw_resume(world: CheckerWorld, random: Random) -> Arguments | None:
    names = [name for name, kept in world.kept.items() if kept.kind == "scan"]
    if not names:
        return None
    other = table_of(world, random, EVERY_KIND)
    return {
        "kept": random.choice(names),
        "batches": random.choice([None, None, 1, 2]),
        "as": f"s{world.next_number()}",
        "path": random.choice(["auto", "rocksdb"]),
        "misuse": random.choice([None] * 6 + ["reverse", "limit", "table"]),
        "other": None if other is None else other.name,
    }


@define("resume_scan", 4, _draw_resume)
def _resume_scan(world: CheckerWorld, arguments: Arguments) -> None:
    kept = world.kept.get(arguments["kept"])
    if kept is None:
        return
    left: _LeftScan = kept.value
    table = world.tables.get(kept.name)
    if arguments["misuse"] is not None:
        _must_refuse(world, kept, arguments)
        return
    altered = left.is_altered(table) if table is not None and table.number == kept.table else {True}
    try:
        scan = left.scan(world, kept.name).read_path(arguments.get("path", "auto")).resume_from(left.token)
        if altered == {True}:
            scan.to_pylist()
        elif table is not None:
            _read(world, table, scan, left, arguments)
    except SnapshotLost:
        assert left.snapshot is not None
        del world.kept[arguments["kept"]]
        return
    except _REFUSALS:
        if True not in altered:
            raise
        return
    assert False in altered, f"the token of a scan of {kept.name} is taken, although the table is another one now"
    assert table is not None
    world.record("resume_scan", table)


def _must_refuse(world: CheckerWorld, kept: Kept, arguments: Arguments) -> None:
    """A token belongs to one scan, and no other takes it."""
    left: _LeftScan = kept.value
    name, misuse = kept.name, arguments["misuse"]
    if misuse == "table":
        name, left = arguments["other"], replace(left, snapshot=None)
        if name is None or name == kept.name:
            return
    with suppress(*_REFUSALS, NoPrimaryKey, SnapshotLost, UsageError):
        scan = left.scan(world, name)
        scan = scan.reverse() if misuse == "reverse" else scan.limit(9) if misuse == "limit" else scan
        scan.resume_from(left.token).to_pylist()
        raise AssertionError(f"the token of a scan is taken by another one: {misuse}")


def _read(world: CheckerWorld, table: CheckerTable, scan: Scan, left: _LeftScan, arguments: Arguments) -> None:
    """Reads some batches or all, compares them, and keeps the last token."""
    batches, name = arguments["batches"], arguments["as"]
    with scan.stream() as stream:
        parts = [(stream.bucket, batch.to_pylist()) for batch in islice(stream, batches)]
        token = stream.resume_token
    found = [row for _, rows in parts for row in rows]
    buckets = {} if left.arguments["order"] == "key" else _buckets(world, table, left)
    buckets |= {row[KEY]: bucket for bucket, rows in parts for row in rows if bucket is not None}
    until = _compare(table, left, found, buckets, is_complete=batches is None or len(parts) < batches)
    if not found or token is None or batches is None:
        return
    bucket = parts[-1][0] or 0
    sign = -1 if left.arguments["reverse"] else 1
    key = found[-1][KEY]
    place = (left.view or table.view()).places([key])[key]
    last = (0 if left.arguments["order"] == "key" else bucket, sign * place)
    value = replace(left, token=token, last=last, until=until, rows=left.rows + len(found))
    world.kept[name] = Kept("scan", table.number, table.name, value)


def _compare(
    table: CheckerTable, left: _LeftScan, found: list[Shown], buckets: dict[int, int], *, is_complete: bool
) -> tuple[int, int]:
    """Compares rows with those after the token. Returns the place of the next one."""
    arguments, view = left.arguments, left.view or table.view()
    sign = -1 if arguments["reverse"] else 1

    optional = {} if left.snapshot is not None else _expired_since(table, left)
    rows = view.shown() | {key: show(view.columns, key, values, view.key) for key, values in optional.items()}
    places = view.places(rows)

    def place(key: int) -> tuple[int, int]:
        return buckets.get(key, 0), sign * places[key]

    chosen = arguments["columns"] or [*view.key, *(column.name for column in view.columns)]
    wanted = [
        ({name: row[name] for name in chosen}, key in optional or place(key) < left.until)
        for key, row in sorted(rows.items(), key=lambda item: place(item[0]))
        if place(key) > left.last and matches(arguments["where"], row)
    ]
    limit = arguments["limit"]
    is_full = limit is not None and left.rows + len(found) == limit
    rest = iter(wanted)
    assert limit is None or left.rows + len(found) <= limit, "more rows came than the limit"
    for row in found:
        skipped = [each for each, may_lack in _before(rest, row) if not may_lack]
        assert not skipped, f"{row} comes before {skipped}: found {found}, expected {wanted}"
    missing = [row for row, may_lack in rest if not may_lack]
    assert is_full or not is_complete or not missing, f"{missing} are missing: found {found}, expected {wanted}"
    return place(missing[0][KEY]) if missing else _END


def _before(rest: Any, row: Shown) -> list[tuple[Shown, bool]]:  # an iterator of rows
    """Returns the rows before a given one, which must come."""
    before = list[tuple[Shown, bool]]()
    for each in rest:
        if exact(each[0]) == exact(row):
            return before
        before.append(each)
    raise AssertionError(f"{row} must not come: the others were {[each for each, _ in before]}")


def _expired_since(table: CheckerTable, left: _LeftScan) -> dict[int, dict[int, Any]]:
    """Returns the rows that have expired since the scan began. All its parts may have them."""
    found = table.expired.items()
    return {key: values for key, (values, written) in found if (key, written) not in left.expired}


def _buckets(world: CheckerWorld, table: CheckerTable, left: _LeftScan) -> dict[int, int]:
    """Returns the bucket of each key, from a scan of each bucket."""
    scan = world.table(table.name).scan([KEY])
    scan = scan if left.snapshot is None else scan.as_of(left.snapshot)
    numbers = range(table.options["buckets"])
    return {row[KEY]: number for number in numbers for row in scan.with_buckets(number).to_pylist()}
