"""The archive of a server whose number of workers changes: it continues, and every instant can be restored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import sync
from streaming_server.storage.backup.backup_store import BackupStore
from tests.support.archived import (
    check_every_instant,
    rows_at,
    serve_with_backups,
    wait_archived,
    write_alone_and_together,
)
from tests.support.workers import kill_worker, names_of_workers, wait_for_worker

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(240)

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
NAMES = [name for (name,) in names_of_workers(2, "kept")]


def create(client: sync.Client, name: str) -> sync.Table:
    return client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)


@pytest.mark.breadth
def test_every_instant_can_be_restored_while_the_number_of_workers_changes(tmp_path: Path) -> None:
    check_every_instant(tmp_path, NAMES, [1, 2, 3, 2], create, lambda run: [run])


@pytest.mark.breadth
def test_a_worker_that_is_killed_right_after_changes_of_tables_loses_none_of_them(tmp_path: Path) -> None:
    store = BackupStore(str(tmp_path / "backups"))
    with (
        serve_with_backups(tmp_path, 2, archives=True) as server,
        sync.connect(server.url, operation_timeout=60) as client,
    ):
        for name in NAMES:
            create(client, name)
        client.create_backup()
        wait_archived(store)
        for number, owned in enumerate(names_of_workers(2, "killed", each=2)):
            for name in owned:
                create(client, name).upsert([{"k": number, "v": number}])
            write_alone_and_together(client, NAMES, [number], number)
            kill_worker(server, number)
            wait_for_worker(server, number)
            client.table(owned[0]).upsert([{"k": 9, "v": 9}])
        write_alone_and_together(client, NAMES, [2], 2)
        instant = wait_archived(store)
        assert len(store.manifests()) == 1
    expected = {name: {0: 0, 1: 1, 2: 2} for name in NAMES}
    for number, (first, second) in enumerate(names_of_workers(2, "killed", each=2)):
        expected |= {first: {number: number, 9: 9}, second: {number: number}}
    assert rows_at(store, instant, tmp_path / "then") == expected
