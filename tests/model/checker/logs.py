"""Operations with tables without a key: what only they can do, and what they refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aio_client import NoPrimaryKey, StartFrom, StopAt
from tests.model.checker.drawing import LOG
from tests.model.checker.model import KEY
from tests.model.checker.operation import Arguments, define
from tests.model.checker.world import by_key, compare

if TYPE_CHECKING:
    from random import Random

    from tests.model.checker.world import CheckerWorld


def _draw_read(world: CheckerWorld, random: Random) -> Arguments | None:
    return {"newest": random.choice([2, 30])} if LOG in world.tables else None


@define("read_log_in_order", 1.5, _draw_read)
def _read_in_order(world: CheckerWorld, arguments: Arguments) -> None:
    table, newest = world.tables.get(LOG), arguments["newest"]
    if table is None:
        return
    opened, appended = world.table(LOG), {key: number for number, key in enumerate(table.rows)}
    changes = opened.changes(StartFrom.EARLIEST, StopAt.LATEST).to_pylist()
    found = by_key([{name: value for name, value in row.items() if not name.startswith("_")} for row in changes])
    compare(found, table.view().shown())
    buckets: dict[int, list[int]] = {}
    for row in changes:
        assert row["_change_type"] == "+I", f"a row was not inserted: {row}"
        buckets.setdefault(row["_bucket"], []).append(row[KEY])
    for bucket, keys in buckets.items():
        assert keys == sorted(keys, key=appended.__getitem__), f"bucket {bucket} is not in the order of the appends"
        rows = opened.scan().with_buckets(bucket).reverse().limit(newest).to_pylist()
        assert [row[KEY] for row in rows] == keys[::-1][:newest], f"bucket {bucket} has other newest rows: {rows}"
    in_order = [key for bucket in sorted(buckets) for key in buckets[bucket]]
    assert [row[KEY] for row in opened.scan().to_pylist()] == in_order, "a scan has another order than the changes"
    world.record("read_log_in_order", table)


@define("use_log_as_if_it_had_a_key", 0.5, _draw_read)
def _use_keys(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.get(LOG)
    if table is None:
        return
    opened, rows = world.table(LOG), [{KEY: arguments["newest"], **{column.name: None for column in table.columns}}]
    refused: list[Any] = [
        lambda: opened.upsert(rows),
        lambda: opened.delete([1]),
        lambda: opened.get(1),
        lambda: opened.lookup([1]),
        lambda: opened.scan().ordered().to_arrow(),
        lambda: opened.upsert(rows, if_version=opened.log_offsets()),
        lambda: opened.undo("w1", opened.log_offsets()),
        lambda: opened.delete(where=f"{KEY} < 5"),
        lambda: opened.replace(rows),
        lambda: opened.changes(StartFrom.EARLIEST, StopAt.LATEST).with_catch_up("net", lag_threshold=1).to_arrow(),
    ]
    for call in refused:
        with pytest.raises(NoPrimaryKey):
            call()
    world.record("use_log_as_if_it_had_a_key", table)
    world.check(LOG)
