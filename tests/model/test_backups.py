"""Restored tables have exactly the rows and changes that they had at the instant of a backup, or at any other."""

from __future__ import annotations

import asyncio
import time
from copy import deepcopy
from random import Random
from typing import TYPE_CHECKING

import pytest

from aio_client import connect
from streaming_server.engine.backups.restore import restore_all
from streaming_server.engine.backups.restore_plan import plan_backup, plan_instant
from streaming_server.storage.backup.backup_manifest import read_manifest
from streaming_server.storage.backup.backup_store import BackupStore
from streaming_server.storage.backup.verify import verify, verify_archive
from tests.model.history import History, noted
from tests.model.offline_checks import check_stored_table
from tests.support.archived import ARCHIVING, wait_archived
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from tests.model.model_table import ModelTable

pytestmark = pytest.mark.one_process


@pytest.mark.represented_by("2-upsert-30-3")
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("seed", "changelog", "operations", "moments"),
    [
        (1, "full", 40, 5),
        (2, "upsert", 30, 3),
        (3, "none", 30, 3),
        *(
            pytest.param(seed, ("full", "upsert", "none")[seed % 3], 600, 20, marks=pytest.mark.soak)
            for seed in range(4, 12)
        ),
    ],
)
async def test_backups_at_random_moments_equal_the_model(
    tmp_path: Path, seed: int, changelog: str, operations: int, moments: int
) -> None:
    location, random = tmp_path / "backups", Random(seed)
    models: dict[str, ModelTable] = {}
    with noted(f"seed {seed}"), ServerProcess(tmp_path / "data", "--backup-location", str(location)) as server:
        async with connect(server.url) as client:
            history = await History.begin(
                server, client, random, changelog, evolved=seed % 2 == 0, partitioned=seed % 3 == 0
            )

            async def back_up() -> None:
                models[(await client.create_backup()).backup_id] = deepcopy(history.model)

            history.also = [back_up] * moments
            await history.run(operations)
        store = BackupStore(str(location))
        assert verify(store, models) == {backup_id: [] for backup_id in models}
        for number, (backup_id, model) in enumerate(models.items()):
            restore_all(store, plan_backup(read_manifest(store, backup_id)), tmp_path / f"restored-{number}")
            check_stored_table(tmp_path / f"restored-{number}", "test.history", model)


@pytest.mark.represented_by("1-none-30-3")
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("seed", "changelog", "operations", "moments"),
    [
        (1, "none", 30, 3),
        (2, "full", 30, 3),
        (3, "upsert", 30, 3),
        *(
            pytest.param(seed, ("full", "upsert", "none")[seed % 3], 600, 20, marks=pytest.mark.soak)
            for seed in range(4, 12)
        ),
    ],
)
async def test_restores_as_of_random_instants_equal_the_model(
    tmp_path: Path, seed: int, changelog: str, operations: int, moments: int
) -> None:
    store, random = BackupStore(str(tmp_path / "backups")), Random(seed)
    instants: list[tuple[int, ModelTable]] = []
    settings = ("--backup-location", store.location, *ARCHIVING)
    with noted(f"seed {seed}"), ServerProcess(tmp_path / "data", *settings) as server:
        async with connect(server.url) as client:
            await client.create_backup()
            history = await History.begin(
                server, client, random, changelog, evolved=seed % 2 == 0, partitioned=seed % 3 == 0
            )

            async def note() -> None:
                instants.append((time.time_ns() // 1000, deepcopy(history.model)))

            async def back_up() -> None:
                await client.create_backup()

            history.also = [*[note] * moments, back_up]
            await history.run(operations)
            await note()
            await asyncio.to_thread(wait_archived, store)
    assert verify_archive(store) == []
    for number, (instant, model) in enumerate(instants):
        result = restore_all(store, plan_instant(store, instant), tmp_path / f"restored-{number}")
        assert [(each.name, each.why) for each in result.tables] == [("test.history", "")]
        check_stored_table(tmp_path / f"restored-{number}", "test.history", model)
