"""A client that changes tables in every way that is durable, and knows when each call was answered."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from aio_client import StartFrom, StopAt
from aio_client.sync import connect
from scankv.v1 import snapshot_pb2
from tests.support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from aio_client.sync import Client, Snapshot
    from tests.support.recording_disk import RecordingDisk

__all__ = ["PLAIN", "SETTINGS", "PowerStory", "StoryStep"]

SETTINGS: Final = (
    *("--set", "base_min_rows=1", "--set", "base_maintenance_seconds=0.05", "--set", "base_cpu_share=1"),
    *("--set", "archive_every_seconds=0.2", "--set", "log_maintenance_seconds=0.1", "--set", "bucket_idle_seconds=1"),
    *("--set", "min_free_bytes=0"),
)
"""Arguments of the server, under which maintenance runs all the time."""

_SCHEMA: Final = pa.schema([("k", pa.int64()), ("v", pa.string())])
PLAIN: Final = "cut.plain"
_DIVIDED, _LOCKED, _FED, _PASSING, _UNTRACKED = "cut.divided", "cut.locked", "cut.fed", "cut.passing", "cut.untracked"


@dataclass(frozen=True)
class StoryStep:
    """One acknowledged call.

    Attributes:
        name: What it did.
        start: The moment when it began.
        end: The moment when it was answered.
        is_long: Whether it writes more to the log of a bucket than fits in two blocks of the file system.
    """

    name: str
    start: int
    end: int
    is_long: bool = False


class PowerStory:
    """Runs the calls, one after another.

    Attributes:
        steps: The calls that were acknowledged.
    """

    def __init__(self, disk: RecordingDisk) -> None:
        self._disk = disk
        self.steps: list[StoryStep] = []
        self._kept: list[Snapshot | AbstractContextManager[Any]] = []

    def run(self, url: str) -> None:
        """Runs all calls."""
        self._url = url
        with connect(url, operation_timeout=60) as client:
            self._create(client)
            self._write(client, "0")
            self._define(client)
            self._pin(client)
            self._commit(client)
            self._feed(client)

    def _step(self, name: str, call: Callable[[], object], *, is_long: bool = False) -> None:
        start = self._disk.moment()
        call()
        self.steps.append(StoryStep(name, start, self._disk.moment(), is_long))

    def _create(self, client: Client) -> None:
        self._create_table(client, PLAIN, buckets=2, indexes=["v"], columnar_base="eager")
        self._create_table(client, _DIVIDED, buckets=2, tablets=2)
        self._create_table(client, _UNTRACKED, buckets=1, changelog="none")
        self._create_table(client, _LOCKED, ["c"], buckets=1)

    def _create_table(self, client: Client, name: str, columns: Sequence[str] = (), **options: Any) -> None:
        schema = pa.schema([*_SCHEMA, *(pa.field(column, pa.int64()) for column in columns)])
        self._step(f"create {name}", lambda: client.create_table(name, schema, primary_key=["k"], **options))

    def _upsert(self, client: Client, name: str, rows: dict[int, str]) -> None:
        table = client.table(name)
        self._step(f"upsert {name}", lambda: table.upsert(_rows(rows), columns=["k", "v"]), is_long=len(rows) > 10)

    def _write(self, client: Client, value: str) -> None:
        for name in (PLAIN, _DIVIDED, _UNTRACKED):
            # Records of the write-ahead log that are longer than a block of the file system.
            self._upsert(client, name, {k: f"{value}-{k}-{'x' * 600}" for k in range(30)})
            for k in range(3):
                self._upsert(client, name, {k: f"{value}-one-{k}"})
            table = client.table(name)
            self._step(f"delete {name}", partial(table.delete, [5, 6, 7]))

    def _define(self, client: Client) -> None:
        def lock() -> None:
            self._kept.append(client.table(_LOCKED).lock_columns(["c"], owner="owner", ttl=600))

        added = pa.schema([("c", pa.int64())])
        self._step("alter", lambda: client.alter_table(PLAIN, add_columns=added))
        self._create_table(client, _PASSING, buckets=1)
        self._upsert(client, _PASSING, {1: "x"})
        self._step("drop", lambda: client.drop_table(_PASSING))
        self._step("lock", lock)

    def _pin(self, client: Client) -> None:
        table = client.table(PLAIN)

        def end_shared() -> None:
            with Wire(self._url) as wire:
                wire.pin(PLAIN, lease_id="shared", shared=True)
                request = snapshot_pb2.ReleaseSnapshotRequest(snapshot_id="shared")
                wire.snapshots.ReleaseSnapshot(request, timeout=60)

        def consume() -> None:
            changes = table.changes(StartFrom.EARLIEST, StopAt.LATEST, consumer_id="job", clamp=True)
            with changes.stream() as stream:
                for _ in stream:
                    pass
                stream.commit()

        self._step("snapshot", lambda: self._kept.append(table.snapshot(ttl=600)))
        self._step("snapshot that ends", lambda: table.snapshot(name="name", ttl=600).release())
        self._step("shared snapshot that ends", end_shared)
        self._step("consumer", consume)

    def _commit(self, client: Client) -> None:
        def commit() -> None:
            with client.transaction(id="id") as transaction:
                for name in (PLAIN, _DIVIDED):
                    rows = _rows(dict.fromkeys(range(100, 104), "transaction"))
                    transaction.upsert(client.table(name), rows, columns=["k", "v"])

        self._step("transaction", commit)
        self._step("backup", client.create_backup)

    def _feed(self, client: Client) -> None:
        rows = _rows({k: f"fed {k}" for k in range(40)})
        self._step("bootstrap", lambda: client.bootstrap(_FED, rows, primary_key=["k"], buckets=2, tablets=2))


def _rows(rows: dict[int, str]) -> pa.Table:
    return pa.table({"k": list(rows), "v": list(rows.values())}, schema=_SCHEMA)
