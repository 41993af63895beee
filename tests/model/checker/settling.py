"""What has a server applied of the requests of several clients? Of those without an answer, the changes show it."""

from __future__ import annotations

from collections import defaultdict
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from tests.model.checker.clients import apply_request
from tests.model.checker.model import KEY, Shown, part_of
from tests.model.checker.world import changes_by_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.model.checker.clients import ClientOfRequests
    from tests.model.checker.model import CheckerTable, Position
    from tests.model.checker.operation import Arguments


def settle(
    tables: dict[str, CheckerTable],
    positions: dict[str, Position],
    writers: Sequence[ClientOfRequests],
    found: dict[str, list[Shown]],
) -> None:
    """Applies to the models what the server has applied. Of a request without an answer, the changes show it.

    Args:
        tables: The tables.
        positions: The position in each before the writers began.
        writers: The writers, which have ended.
        found: The changes of each table since then.
    """
    last = list[set[tuple[str, int, int]]]()
    for request in (request for writer in writers for request in writer.requests[: writer.answered]):
        before = _counts(tables)
        apply_request(tables, request)
        if request["transaction"]:
            # A row that has expired by the time in it may have no change.
            last.append({each for each in _counts(tables) - before if not tables[each[0]].may_expire})
    for writer in writers:
        if writer.begun > writer.answered:
            _settle_last(tables, positions, writer.requests[writer.answered], found)
    assert not (wrong := _wrong(tables, positions, found)), f"the changes of {sorted(wrong)} are others, or missing"
    times = {(name, key): each for name, rows in found.items() for key, each in _times_by_key(rows).items()}
    for changes in last:
        committed = {times[name, key][count - positions[name].get(key, (0, 0))[1] - 1] for name, key, count in changes}
        assert len(committed) <= 1, f"one transaction was committed at {sorted(committed)}"


def _counts(tables: dict[str, CheckerTable]) -> set[tuple[str, int, int]]:
    """Returns how many changes each key of each table has."""
    return {(name, key, len(each)) for name, table in tables.items() for key, each in table.changes.items() if each}


def _times_by_key(rows: list[Shown]) -> dict[int, list[Any]]:
    times = defaultdict[int, list[Any]](list)
    for row in rows:
        times[row[KEY]].append(row["_commit_timestamp"])
    return times


def _wrong(
    tables: dict[str, CheckerTable], positions: dict[str, Position], found: dict[str, list[Shown]]
) -> set[tuple[str, int]]:
    """Returns the tables and keys whose changes are not those of the models."""
    return {
        (name, key)
        for name, table in tables.items()
        for key in table.wrong_changes(positions[name], changes_by_key(found[name]))
    }


def _settle_last(
    tables: dict[str, CheckerTable], positions: dict[str, Position], request: Arguments, found: dict[str, list[Shown]]
) -> None:
    """Applies a request without an answer as far as the server has: each bucket of it, or a transaction, or nothing."""
    after = {name: deepcopy(table) for name, table in tables.items()}
    apply_request(after, request)
    written = [
        (part["table"], key)
        for part in request["parts"]
        for key in (*part["keys"], *(row[KEY] for row in part["rows"]))
    ]
    for name, key in written:
        tables[name].possible.add(part_of(key))
    units = defaultdict[int, set[tuple[str, int]]](set)
    if request["transaction"]:
        units[0] |= {*written}
    else:
        for name in {name for name, _ in written}:
            for row in found[name]:
                units[row["_bucket"]] |= {(name, row[KEY])} & {*written}
    wrong, wrong_after = _wrong(tables, positions, found), _wrong(after, positions, found)
    for unit in units.values():
        assert not (unit & wrong and unit & wrong_after), f"a part of a request is there: {sorted(unit)}"
        # In the order of the request, which rows without a key keep.
        for name, key in written if unit & wrong else ():
            if (name, key) in unit:
                tables[name].take_over(after[name], key)
