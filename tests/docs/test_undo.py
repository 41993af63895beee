"""The recipes of docs/guides/undo.md: a job or a stream of batches that is killed anywhere ends as if it never was."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import ColumnLocked, LockLost, TableRecreated, agg, sync

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess

TEXT = (Path(__file__).parents[2] / "docs" / "guides" / "undo.md").read_text()
SCHEMA = pa.schema([("k", pa.int64()), ("total", pa.int64()), ("n", pa.int64())])
PROGRESS = pa.schema([("job", pa.string()), ("position", pa.int64()), ("offsets", pa.string())])


class Killed(Exception):
    """In place of the end of the process."""


def recipes(**known: Any) -> dict[str, Any]:
    for block in re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE):
        if "\ndef " in f"\n{block}":
            exec(compile(block, "docs/guides/undo.md", "exec"), known)
    return known


@pytest.fixture
def tables(shared_server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[tuple[sync.Table, sync.Table]]:
    with sync.connect(shared_server.url) as client:
        name = re.sub(r"\W", "_", request.node.name)
        totals = client.create_table(
            f"undo.{name}",
            SCHEMA,
            primary_key=["k"],
            merge_engine="aggregate",
            aggregators={"total": agg.sum(), "n": agg.count()},
        )
        yield totals, client.create_table(f"undo.{name}_progress", PROGRESS, primary_key=["job"])


def rows(position: int) -> list[dict[str, int]]:
    return [{"k": k, "total": position, "n": 1} for k in range(position % 3, 9)]


def expected(positions: int) -> list[dict[str, int]]:
    all_rows = [row for position in range(positions) for row in rows(position)]
    keys = sorted({row["k"] for row in all_rows})
    mine = {k: [row for row in all_rows if row["k"] == k] for k in keys}
    return [{"k": k, "total": sum(row["total"] for row in mine[k]), "n": len(mine[k])} for k in keys]


@pytest.mark.breadth
def test_the_job_is_exact_though_it_dies_between_write_and_checkpoint(tables: tuple[sync.Table, sync.Table]) -> None:
    table, progress = tables
    recipe = recipes()
    upsert = progress.upsert
    for last in (0, 2, 2, 5):

        def read_from(position: int) -> Iterator[tuple[int, list[dict[str, int]]]]:
            for number in range(position, 6):
                yield number + 1, rows(number)

        def die(data: Any, last: int = last) -> None:
            if data[0]["position"] > last:
                raise Killed
            upsert(data)

        progress.upsert = die  # type: ignore[method-assign, assignment]  # the process ends in its place
        with pytest.raises(Killed):
            recipe["run"](table, progress, read_from)
    progress.upsert = upsert  # type: ignore[method-assign]
    recipe["run"](table, progress, read_from)
    assert table.scan().ordered().to_pylist() == expected(6)


def die_at_checkpoint(progress: sync.Table, position: int) -> None:
    """Ends the process in place of keeping this position, once."""
    upsert = progress.upsert

    def die(data: Any) -> None:
        if data[0]["position"] == position:
            progress.upsert = upsert  # type: ignore[method-assign]
            raise Killed
        upsert(data)

    progress.upsert = die  # type: ignore[method-assign, assignment]  # the process ends in its place


def from_the_end(position: int) -> Iterator[tuple[int, list[dict[str, int]]]]:
    for number in range(position, 4):
        yield number + 1, rows(number)


def test_sums_that_others_have_added_to_are_not_doubled(tables: tuple[sync.Table, sync.Table]) -> None:
    table, progress = tables
    recipe = recipes()
    die_at_checkpoint(progress, 2)
    with pytest.raises(Killed):
        recipe["run"](table, progress, from_the_end)
    # Position 1 is written, and not kept. Now another job adds to one of its sums.
    table.upsert([{"k": 5, "total": 100, "n": 1}])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="1 rows of"):
            recipe["run"](table, progress, from_the_end)
        assert table.get(5) == {"k": 5, "total": 101, "n": 3}, "written twice"
        assert table.get(6) == {"k": 6, "total": 0, "n": 1}, "not undone"


def test_a_lock_keeps_others_out_until_the_job_is_back(tables: tuple[sync.Table, sync.Table]) -> None:
    table, progress = tables
    recipe = recipes()
    die_at_checkpoint(progress, 2)
    with pytest.raises(Killed):
        recipe["run_locked"](table, progress, from_the_end)
    # A crash leaves the lock, which the end of the block above has released.
    left = table.lock_columns(["total", "n"], owner="job-1", ttl=600)
    with pytest.raises(ColumnLocked):
        table.upsert([{"k": 5, "total": 100, "n": 1}])
    recipe["run_locked"](table, progress, from_the_end)
    assert table.scan().ordered().to_pylist() == expected(4)
    with pytest.raises(LockLost):
        table.upsert([{"k": 5, "total": 100, "n": 1}], locks=[left])
    # Another one may write now, and is not undone.
    table.upsert([{"k": 5, "total": 100, "n": 1}])


def test_a_table_that_was_created_again_is_left_alone(
    tables: tuple[sync.Table, sync.Table], shared_server: ServerProcess
) -> None:
    table, progress = tables
    recipe = recipes()
    recipe["run"](table, progress, from_the_end)
    with sync.connect(shared_server.url) as client:
        client.drop_table(table.name)
        client.create_table(table.name, SCHEMA, primary_key=["k"])
    table.upsert(rows(0))
    with pytest.raises(TableRecreated):
        recipe["run"](table, progress, from_the_end)
    assert table.count() == len(rows(0))


def test_a_batch_that_is_repeated_counts_once(tables: tuple[sync.Table, sync.Table]) -> None:
    table, progress = tables
    write_batch = recipes(table=table, progress=progress)["write_batch"]

    class Batch:
        def __init__(self, number: int) -> None:
            self.number = number

        def toArrow(self) -> pa.Table:  # Spark's name
            return pa.Table.from_pylist(rows(self.number), SCHEMA)

    for number in (0, 1, 1, 2, 2, 2, 3):
        write_batch(Batch(number), number)
    assert table.scan().ordered().to_pylist() == expected(4)
