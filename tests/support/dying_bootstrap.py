"""Bootstraps a table and kills the process at each step on disk in turn, then resumes the bootstrap.

Run as `python -m tests.support.dying_bootstrap DIRECTORY STRIDE TABLETS`, as `dying_transaction`. Prints the number of
deaths.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from scankv.model.errors import TableExists
from streaming_server.engine.bootstrap import bucket_merge
from streaming_server.engine.bootstrap.bucket_build import BucketBuild
from streaming_server.storage.bootstrap import staged_runs
from streaming_server.storage.bootstrap.staged_runs import BootstrapRequest, StagedRuns
from streaming_server.storage.rocks.sorted_file import SortedFile
from streaming_server.storage.rocks.store import RocksStore
from tests.support.dying_transaction import DEATH, import_what_arrow_needs, in_child, opened
from tests.support.tables import ipc_stream

if TYPE_CHECKING:
    from pathlib import Path

    from streaming_server.engine.tables.tables import Tables

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
NAME = "test.bootstrapped"
TABLETS = int(sys.argv[3])
ROWS = {key: key % 7 for key in range(500)}


def request(first: int, value: int | None = None) -> bytes:
    keys = range(first, len(ROWS), 3)
    values = [ROWS[key] if value is None else value for key in keys]
    return ipc_stream(
        SCHEMA, pa.record_batch([pa.array(keys, pa.int64()), pa.array(values, pa.int64())], schema=SCHEMA)
    )


async def begin(tables: Tables) -> str:
    definition = tables.rules.define(
        NAME, SCHEMA, primary_key=["k"], bucket_key=[], options={}, buckets=2, tablets=TABLETS, indexes=[["v"]]
    )
    return await tables.begin_bootstrap(definition, source="a source")


async def stage(tables: Tables, id_: str, part: str, number: int, value: int | None = None) -> None:
    place, digest = BootstrapRequest(part, number), f"{part} {number}".encode()
    await tables.bootstraps.stage(id_, NAME, place, request(number, value), digest)


async def bootstrap_and_die(data: Path, steps: int) -> None:
    """Runs a complete bootstrap, with a part of a failed attempt. Marks what was acknowledged."""
    async with opened(data) as tables:
        DEATH.left = steps
        id_ = await begin(tables)
        for number in range(3):
            await stage(tables, id_, "failed attempt", number, 666)
        for number in range(3):
            await stage(tables, id_, "rows", number)
            acknowledge(data)
        made = await tables.bootstraps.commit(id_, NAME, {"rows": 3}, 60)
        assert (made.is_done, made.rows, made.merged_rows) == (True, len(ROWS), len(ROWS))
        acknowledge(data)
        await tables.bootstraps.abort(id_, NAME)


def acknowledge(data: Path) -> None:
    """Records that one more of the three requests and the commit was answered. A kill leaves it recorded or not."""
    with data.with_suffix(".acknowledged").open("ab", buffering=0) as file:
        file.write(b".")


def acknowledged(data: Path) -> int:
    file = data.with_suffix(".acknowledged")
    return file.stat().st_size if file.exists() else 0


async def check(data: Path) -> None:
    """Resumes the bootstrap, and checks that nothing that was answered is done again, and that nothing is left."""
    async with opened(data) as tables:
        assert [*(data / "trash").iterdir()] == []
        before = acknowledged(data)
        try:
            id_ = await begin(tables)
        except TableExists:
            assert before == 4
        else:
            await resume(tables, id_, before)
            await tables.bootstraps.abort(id_, NAME)
        await check_contents(tables)
        assert [*(data / "trash").iterdir()] == [*(data / "bootstraps").iterdir()] == []


async def resume(tables: Tables, id_: str, before: int) -> None:
    """Stages what is missing, and commits."""
    found = tables.bootstraps.get(id_, NAME)
    if await tables.rows_of_bootstrap(id_, NAME) == len(ROWS):
        assert before >= 3
        return
    there = len(found.staged.get("rows", ()))
    assert min(before, 3) <= there <= min(before, 3) + 1
    assert before < 4, "the table exists"
    assert [each.digest for each in found.staged.get("rows", ())] == [f"rows {n}".encode() for n in range(there)]
    for number in range(0 if not found.is_committing else 3, 3):
        await stage(tables, id_, "rows", number)
    built = len([*found._directory.table.parent.glob("built/*.json")])
    made: list[BucketBuild] = []
    make = BucketBuild._make_bucket

    def recorded(build: BucketBuild, least: bytes, micros: int) -> None:
        made.append(build)
        make(build, least, micros)

    BucketBuild._make_bucket = recorded  # type: ignore[method-assign, assignment]
    done = await tables.bootstraps.commit(id_, NAME, {"rows": 3}, 60)
    assert (done.is_done, done.rows, done.merged_rows) == (True, len(ROWS), len(ROWS))
    assert len(made) == 2 - built, "complete buckets are not made again"


async def check_contents(tables: Tables) -> None:
    table, rows, counted = tables.table(NAME), dict[int, int](), 0
    keys = pa.schema([SCHEMA.field("k")])
    sought = pa.record_batch([pa.array(range(-10, len(ROWS) + 10), pa.int64())], schema=keys)
    buckets = table.state.codec.keys.buckets_of_rows(sought)
    for part in (tables.table(each.name) for each in table.definition.parts if each.own_buckets):
        own = sought.filter(pa.array(np.isin(buckets, part.definition.own_buckets)))
        batch, _, _ = await part.reads.lookup(ipc_stream(keys, own), None)
        rows |= {row["k"]: row["v"] for row in batch.to_pylist()}
        for live in part.buckets:
            findings = await (await part.open_check(live.number)).run()
            assert not findings.problem, findings
        figures, _ = await part.statistics()
        counted += sum(each.state.rows or 0 for each in figures if each.state)
        left = {path.name for live in part.buckets for path in live.path.parent.iterdir() if path.suffix == ".sst"}
        assert left == set(), "every file was moved into its bucket"
    assert rows == ROWS
    assert counted == len(ROWS)


def tear_writes() -> None:
    """Makes each write of staged rows a step, at which half of it is written."""
    write = staged_runs._write

    def stepping(file: int, offset: int, data: bytes | pa.Buffer) -> None:
        if DEATH.step():
            write(file, offset, memoryview(data)[: len(data) // 2].tobytes())
            DEATH.die()
        write(file, offset, data)

    staged_runs._write = stepping


def main(directory: Path, stride: int) -> None:
    """Kills the bootstrap at every step that the stride meets."""
    import_what_arrow_needs()
    DEATH.install()
    for owner, name in (
        (os, "fdatasync"),
        (pathlib.Path, "replace"),
        (pathlib.Path, "rename"),
        (StagedRuns, "seal"),
        (SortedFile, "finish"),
        (RocksStore, "ingest_rows"),
    ):
        DEATH.wrap(owner, name)
    tear_writes()
    # Several files for each bucket.
    bucket_merge.RANGE_BYTES = 1024  # type: ignore[misc]
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
