"""Bootstraps a table and kills the process at each step on disk in turn, then checks what is left.

Run as `python -m tests.support.dying_bootstrap DIRECTORY STRIDE`, as `dying_transaction`. Prints the number of deaths.
"""

from __future__ import annotations

import pathlib
import shutil
import sys
from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.model.errors import TableNotFound
from streaming_server.engine.bootstrap import bucket_build
from streaming_server.storage.bootstrap.staged_runs import BootstrapRequest, StagedRuns
from streaming_server.storage.rocks.store import RocksStore, SortedFile
from tests.support.dying_transaction import DEATH, import_what_arrow_needs, in_child, opened
from tests.support.tables import ipc_stream

if TYPE_CHECKING:
    from pathlib import Path

    from streaming_server.engine.tables.tables import Tables

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
NAME = "test.bootstrapped"
ROWS = {key: key % 7 for key in range(500)}


def request(first: int, value: int | None = None) -> bytes:
    keys = range(first, len(ROWS), 3)
    values = [ROWS[key] if value is None else value for key in keys]
    return ipc_stream(
        SCHEMA, pa.record_batch([pa.array(keys, pa.int64()), pa.array(values, pa.int64())], schema=SCHEMA)
    )


async def bootstrap(tables: Tables) -> None:
    """Runs a complete bootstrap, with a part of a failed attempt."""
    definition = tables.define(NAME, SCHEMA, primary_key=["k"], bucket_key=[], options={}, buckets=2, indexes=[["v"]])
    id_ = await tables.begin_bootstrap(definition)
    for part, value in (("failed attempt", 666), ("rows", None)):
        for number in range(3):
            await tables.bootstraps.stage(id_, NAME, BootstrapRequest(part, number), request(number, value))
    bootstrap = await tables.bootstraps.commit(id_, NAME, {"rows": 3}, 60)
    assert (bootstrap.is_done, bootstrap.rows, bootstrap.merged_rows) == (True, len(ROWS), len(ROWS))


async def bootstrap_and_die(data: Path, steps: int) -> None:
    async with opened(data) as tables:
        DEATH.left = steps
        await bootstrap(tables)
        data.with_suffix(".acknowledged").touch()


async def check(data: Path) -> None:
    """Checks that the table has all rows or does not exist, and that nothing else is left."""
    async with opened(data) as tables:
        assert [*(data / "trash").iterdir()] == []
        try:
            tables.table(NAME)
        except TableNotFound:
            assert not data.with_suffix(".acknowledged").exists()
            await bootstrap(tables)
        await check_contents(tables)


async def check_contents(tables: Tables) -> None:
    table = tables.table(NAME)
    keys = pa.schema([SCHEMA.field("k")])
    sought = ipc_stream(keys, pa.record_batch([pa.array(range(-10, len(ROWS) + 10), pa.int64())], schema=keys))
    batch, _, _ = await table.reads.lookup(sought, None)
    assert {row["k"]: row["v"] for row in batch.to_pylist()} == ROWS
    for live in table.buckets:
        findings = await (await table.open_check(live.number)).run()
        assert not findings.problem, findings
    figures, _ = await table.statistics()
    assert sum(each.state.rows or 0 for each in figures if each.state) == len(ROWS)
    left = {path.name for live in table.buckets for path in live.path.parent.iterdir() if path.suffix == ".sst"}
    assert left == set(), "every file was moved into its bucket"


def main(directory: Path, stride: int) -> None:
    """Kills the bootstrap at every step that the stride meets."""
    import_what_arrow_needs()
    DEATH.install()
    for owner, name in (
        (StagedRuns, "append"),
        (StagedRuns, "seal"),
        (SortedFile, "finish"),
        (RocksStore, "ingest_rows"),
    ):
        DEATH.wrap(owner, name)
    # Several files for each bucket.
    bucket_build.RANGE_BYTES = 1024  # type: ignore[misc]
    deaths, ended = 0, False
    for steps in range(0, 1000, stride):
        data = directory / f"bootstrap-{steps}"
        ended = in_child(bootstrap_and_die, data, steps)
        in_child(check, data)
        shutil.rmtree(data)
        deaths += not ended
        if ended:
            break
    assert ended
    print(deaths)  # noqa: T201


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
