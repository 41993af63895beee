"""Whatever file or directory of one table is damaged, a server starts and serves all other tables."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scankv.model.errors import DataLoss, ScanKvError, TableNotFound
from streaming_server.storage.tables.data_directory import DataDirectory
from tests.faults.test_transaction_blast_radius import ONE, OTHER, commit, crash, scores_of, started
from tests.support.snapshots import new_table

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.asyncio


async def made(data: Path, tmp_path: Path) -> Path:
    """Creates what a crash leaves of two tables, one with a snapshot, a lock, and an open transaction."""
    async with started(data) as tables:
        for name in (ONE, OTHER):
            await new_table(tables, name)
            await commit(tables, 1, name)
        one = tables.table(ONE)
        await tables.snapshots.pin(one.pinning, lease_id="pinned")
        await one.writes.locks.lock(lambda: one.definition, ["score"], "somebody", "", 60.0)
        await tables.transactions.begin(_terms("open"))
        return crash(data, tmp_path / "crashed")


def _terms(id_: str) -> Any:
    from streaming_server.engine.transactions.open_transaction import TransactionOptions

    return TransactionOptions(id=id_, attempt="a", finds_conflicts=False, ttl=60)


def _nonsense(path: Path) -> None:
    path.write_bytes(b'{"nonsense": ' + os.urandom(40))


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.timeout(180)  # damages and opens a table once for each of its files
@pytest.mark.soak
async def test_any_damaged_file_of_a_table_keeps_no_other_table_from_being_served(tmp_path: Path) -> None:
    crashed = await made(tmp_path / "data", tmp_path)
    table = crashed / "tables" / "game" / "one"
    small = [path for path in table.rglob("*") if path.is_file() and path.suffix in (".json", ".durable")]
    small += [path for path in (crashed / "transactions").rglob("*") if path.is_file()]
    assert len(small) >= 8, small
    for number, path in enumerate(small):
        for damage in (_nonsense, _directory, _empty):
            copy = shutil.copytree(crashed, tmp_path / f"{number}-{damage.__name__}")
            damage(copy / path.relative_to(crashed))
            async with started(copy) as tables:
                assert await scores_of(tables.table(OTHER)) == {1}, path
                try:
                    assert await scores_of(tables.table(ONE)) <= {1}
                except ScanKvError as error:
                    assert "game.one" in error.message  # noqa: PT017 (either is right)
            shutil.rmtree(copy)


async def test_a_table_with_a_damaged_definition_is_reported_and_can_be_dropped_and_recreated(tmp_path: Path) -> None:
    crashed = await made(tmp_path / "data", tmp_path)
    _nonsense(crashed / "tables" / "game" / "one" / "table.json")
    async with started(crashed) as tables:
        with pytest.raises(DataLoss, match=r"table game\.one cannot be used: .*table\.json.*restore it from a copy"):
            tables.table(ONE)
        with pytest.raises(DataLoss):
            await new_table(tables, ONE)
        await tables.drop(ONE)
        with pytest.raises(TableNotFound):
            tables.table(ONE)
        await new_table(tables, ONE)
        await commit(tables, 3, ONE, OTHER)
        assert await scores_of(tables.table(ONE)) == {3}


async def test_a_committed_transaction_waits_for_a_table_whose_definition_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path / "data") as tables:
        for name in (ONE, OTHER):
            await new_table(tables, name)
            await commit(tables, 1, name)

        def fails(*_: object) -> None:
            raise OSError(errno.EIO, "input/output error")

        monkeypatch.setattr("streaming_server.engine.transactions.roll_forward.apply_rows", fails)
        with pytest.raises(ScanKvError, match="is committed"):
            await commit(tables, 2, ONE, OTHER, id_="job:1")
        monkeypatch.undo()
        crashed = crash(tmp_path / "data", tmp_path / "crashed")
    file = crashed / "tables" / "game" / "one" / "table.json"
    content = file.read_bytes()
    _nonsense(file)
    for _ in range(2):
        async with started(crashed) as tables:
            assert await scores_of(tables.table(OTHER)) == {2}
            with pytest.raises(DataLoss):
                await tables.transactions.begin(_terms("job:1"))
    file.write_bytes(content)
    async with started(crashed) as tables:
        assert await scores_of(tables.table(ONE)) == await scores_of(tables.table(OTHER)) == {2}


@pytest.mark.breadth
async def test_a_start_succeeds_even_if_its_writes_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write, rename and directory creation of a start fails once for lack of space, one after another."""
    crashed = await made(tmp_path / "data", tmp_path)
    calls = 0
    failing: int | None = None

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if failing is not None and calls > failing:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return original(*args, **options)

        return call

    for owner, name in ((os, "pwrite"), (os, "fsync"), (os, "ftruncate"), (Path, "rename"), (Path, "replace")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    steps = 0
    for number in range(100):
        copy = shutil.copytree(crashed, tmp_path / f"step-{number}")
        calls, failing = 0, number
        if number < 5:
            # Only the sync of the directory itself, before anything is served, may make the start fail.
            try:
                DataDirectory(copy).close()
            except ScanKvError:
                continue
            calls = 0
        async with started(copy) as tables:
            done = calls
            assert await scores_of(tables.table(OTHER)) == await scores_of(tables.table(ONE)) == {1}
        shutil.rmtree(copy)
        steps = number
        if done <= number:
            break
    assert steps > 3
