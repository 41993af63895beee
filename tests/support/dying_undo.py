"""Undoes a writer and kills the process at each step on disk in turn, then repeats the undo.

Run as `python -m tests.support.dying_undo DIRECTORY`; see `dying_transaction`. Prints the number of deaths.
"""

from __future__ import annotations

import pathlib
import shutil
import sys
from typing import TYPE_CHECKING

import streaming_server.engine.transactions.undo
from scankv.model.changes.log_offsets import LogOffsets
from streaming_server.engine.tables.tables import Tables
from streaming_server.engine.transactions.undo import UndoOperation, UndoResult
from streaming_server.engine.writes.writing import WritePreconditions
from streaming_server.storage.bucket.writer_states import WriteIdentity
from tests.support.dying_transaction import DEATH, SCHEMA, import_what_arrow_needs, in_child, keys_of, opened, rows

if TYPE_CHECKING:
    from pathlib import Path

    from streaming_server.engine.tables.tables import Tables

NAME, WRITER = "test.undone", "job-1"
BEFORE = dict.fromkeys(range(20), 0)
WRITTEN = dict.fromkeys(range(10, 30), 1)
OFFSETS = LogOffsets({0: 20})


async def make(data: Path) -> None:
    async with opened(data) as tables:
        await tables.create(NAME, SCHEMA, primary_key=["k"], bucket_key=[], buckets=1, options={})
        table = tables.table(NAME)
        await table.writes.upsert(rows(range(20), 0), 0)
        epoch, sequence = await table.writes.open_writer(WRITER)
        first, second = (
            WritePreconditions(identity=WriteIdentity(writer=WRITER, epoch=epoch, sequence=sequence + number))
            for number in range(2)
        )
        await table.writes.upsert(rows(range(30), 1), 0, first)
        await table.writes.delete(keys_of(range(10)), second)


async def undo_and_die(data: Path, steps: int) -> None:
    async with opened(data) as tables:
        DEATH.left = steps
        await UndoOperation(tables.table(NAME), WRITER, frozenset()).run(OFFSETS)


async def _undo(tables: Tables) -> UndoResult:
    undoing = UndoOperation(tables.table(NAME), WRITER, frozenset())
    await undoing.run(OFFSETS)
    return undoing.result


async def check(data: Path) -> None:
    """Checks that each key has its old or written value, a repetition restores all, and a further one does nothing."""
    async with opened(data) as tables:
        found = await contents(tables)
        for key in range(30):
            assert found.get(key) in (BEFORE.get(key), WRITTEN.get(key)), found
        undone = await _undo(tables)
        assert undone.conflicts == 0, undone
        assert await contents(tables) == BEFORE
        again = await _undo(tables)
        assert (again.restored, again.deleted, again.conflicts) == (0, 0, 0), again


async def contents(tables: Tables) -> dict[int, int]:
    batch, _, _ = await tables.table(NAME).reads.lookup(keys_of(range(40)), None)
    return {row["k"]: row["v"] for row in batch.to_pylist()}


def main(directory: Path) -> None:
    """Kills the undo at every step."""
    import_what_arrow_needs()
    DEATH.install()
    streaming_server.engine.transactions.undo._WRITE_ROWS = 7  # type: ignore[misc]
    in_child(make, directory / "made")
    for deaths in range(1000):
        data = directory / str(deaths)
        shutil.copytree(directory / "made", data)
        ended = in_child(undo_and_die, data, deaths)
        in_child(check, data)
        shutil.rmtree(data)
        if ended:
            print(deaths)  # noqa: T201
            return
    raise AssertionError("an undo does not end")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
