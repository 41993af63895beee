"""The recipes of docs/undo.md: a job, and a stream of batches, that are killed anywhere end as if they never were."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import agg, sync

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess

TEXT = (Path(__file__).parents[2] / "docs" / "undo.md").read_text()
SCHEMA = pa.schema([("k", pa.int64()), ("total", pa.int64()), ("n", pa.int64())])
PROGRESS = pa.schema([("job", pa.string()), ("position", pa.int64()), ("offsets", pa.string())])


class Killed(Exception):
    """In place of the end of the process."""


def recipes(**known: Any) -> dict[str, Any]:
    for block in re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE):
        exec(compile(block, "docs/undo.md", "exec"), known)
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
            aggregates={"total": agg.sum(), "n": agg.count()},
        )
        yield totals, client.create_table(f"undo.{name}_progress", PROGRESS, primary_key=["job"])


def rows(position: int) -> list[dict[str, int]]:
    return [{"k": k, "total": position, "n": 1} for k in range(position % 3, 9)]


def expected(positions: int) -> list[dict[str, int]]:
    all_rows = [row for position in range(positions) for row in rows(position)]
    keys = sorted({row["k"] for row in all_rows})
    mine = {k: [row for row in all_rows if row["k"] == k] for k in keys}
    return [{"k": k, "total": sum(row["total"] for row in mine[k]), "n": len(mine[k])} for k in keys]


def test_the_job_is_exact_though_it_dies_between_write_and_checkpoint(tables: tuple[sync.Table, sync.Table]) -> None:
    table, progress = tables
    recipe = recipes()
    recipe["begin"](table, progress)
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
