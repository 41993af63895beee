"""A client that changes tables in every way that is durable, and knows what must be there after a cut at any moment."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import grpc
import pyarrow as pa
import pytest

from aio_client import StartFrom, StopAt
from aio_client.sync import connect
from scankv.v1 import snapshot_pb2
from tests.support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

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


@dataclass
class State:
    """What the server has acknowledged.

    Attributes:
        rows: The rows of each table.
        columns: The columns of each table.
        snapshots: The rows of each snapshot of `cut.plain`, by its id.
        ended: The ids of the snapshots that were released.
        shared: The ids of the shared snapshots that were released, which are never used again.
        consumers: The consumers of `cut.plain`.
        locks: The columns of `cut.locked` that are locked.
        backups: How many backups exist.
        transactions: The ids of the committed transactions.
    """

    rows: dict[str, dict[int, str]] = field(default_factory=dict)
    columns: dict[str, list[str]] = field(default_factory=dict)
    snapshots: dict[str, dict[int, str]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)
    consumers: set[str] = field(default_factory=set)
    locks: set[str] = field(default_factory=set)
    backups: int = 0
    transactions: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class StoryStep:
    """One acknowledged call.

    Attributes:
        name: What it did.
        start: The moment when it began.
        end: The moment when it was answered.
        after: What is there since then.
        is_atomic: Whether a cut leaves all of its rows or none.
        is_long: Whether it writes more to the log of a bucket than fits in two blocks of the file system.
    """

    name: str
    start: int
    end: int
    after: State
    is_atomic: bool
    is_long: bool = False


class PowerStory:
    """Runs the calls. One after another, so at most one is in doubt at any moment.

    Attributes:
        steps: The calls that were acknowledged.
    """

    def __init__(self, disk: RecordingDisk) -> None:
        self._disk = disk
        self._now = State()
        self.steps: list[StoryStep] = []
        self._kept: list[Snapshot | AbstractContextManager[Any]] = []

    def run(self, url: str, rounds: int = 1) -> None:
        """Runs all calls, some of them several times."""
        self._url = url
        with connect(url, operation_timeout=60) as client:
            self._create(client, rounds)
            for number in range(rounds):
                self._write(client, f"{number}")
                self._define(client, number)
                self._pin(client, number)
                self._commit(client, number)
            self._feed(client)

    def _step(self, name: str, call: Callable[[], object], *, is_atomic: bool = True, is_long: bool = False) -> None:
        start = self._disk.moment()
        call()
        self.steps.append(StoryStep(name, start, self._disk.moment(), copy.deepcopy(self._now), is_atomic, is_long))

    def _create(self, client: Client, rounds: int) -> None:
        for name, options in (
            (PLAIN, {"buckets": 2, "indexes": ["v"], "columnar_base": "eager"}),
            (_DIVIDED, {"buckets": 2, "tablets": 2}),
            (_UNTRACKED, {"buckets": 1, "changelog": "none"}),
        ):
            self._create_table(client, name, **options)

        columns = [f"c{number}" for number in range(rounds)]
        self._create_table(client, _LOCKED, columns, buckets=1)

    def _create_table(self, client: Client, name: str, columns: Sequence[str] = (), **options: Any) -> None:
        schema = pa.schema([*_SCHEMA, *(pa.field(column, pa.int64()) for column in columns)])

        def call() -> None:
            client.create_table(name, schema, primary_key=["k"], **options)
            self._now.rows[name], self._now.columns[name] = {}, schema.names

        self._step(f"create {name}", call)

    def _upsert(self, client: Client, name: str, rows: dict[int, str]) -> None:
        def call() -> None:
            client.table(name).upsert(_rows(rows), columns=["k", "v"])
            self._now.rows[name] |= rows

        self._step(f"upsert {name}", call, is_atomic=False, is_long=len(rows) > 10)

    def _write(self, client: Client, value: str) -> None:
        for name in (PLAIN, _DIVIDED, _UNTRACKED):
            # Records of the write-ahead log that are longer than a block of the file system.
            self._upsert(client, name, {k: f"{value}-{k}-{'x' * 600}" for k in range(30)})
            for k in range(3):
                self._upsert(client, name, {k: f"{value}-one-{k}"})

            def delete(name: str = name) -> None:
                client.table(name).delete([5, 6, 7])
                self._now.rows[name] = {k: v for k, v in self._now.rows[name].items() if k not in (5, 6, 7)}

            self._step(f"delete {name}", delete, is_atomic=False)

    def _define(self, client: Client, number: int) -> None:
        def alter() -> None:
            client.alter_table(PLAIN, add_columns=pa.schema([(f"c{number}", pa.int64())]))
            self._now.columns[PLAIN].append(f"c{number}")

        def drop() -> None:
            client.drop_table(_PASSING)
            del self._now.rows[_PASSING], self._now.columns[_PASSING]

        def lock() -> None:
            self._kept.append(client.table(_LOCKED).lock_columns([f"c{number}"], owner=f"owner-{number}", ttl=600))
            self._now.locks.add(f"c{number}")

        self._step("alter", alter)
        self._create_table(client, _PASSING, buckets=1)
        self._upsert(client, _PASSING, {1: "x"})
        self._step("drop", drop)
        self._step("lock", lock)

    def _pin(self, client: Client, number: int) -> None:
        table = client.table(PLAIN)

        def pin() -> None:
            snapshot = table.snapshot(ttl=600)
            self._kept.append(snapshot)
            self._now.snapshots[snapshot.id] = dict(self._now.rows[PLAIN])

        def release() -> None:
            shared = table.snapshot(name=f"name-{number}", ttl=600)
            shared.release()
            self._now.ended.add(shared.id)

        def end_shared() -> None:
            with Wire(self._url) as wire:
                wire.pin(PLAIN, lease_id=f"shared-{number}", shared=True)
                request = snapshot_pb2.ReleaseSnapshotRequest(snapshot_id=f"shared-{number}")
                wire.snapshots.ReleaseSnapshot(request, timeout=60)
            self._now.shared.add(f"shared-{number}")

        def consume() -> None:
            changes = table.changes(StartFrom.EARLIEST, StopAt.LATEST, consumer_id=f"job-{number}", clamp=True)
            with changes.stream() as stream:
                for _ in stream:
                    pass
                stream.commit()
            self._now.consumers.add(f"job-{number}")

        self._step("snapshot", pin)
        self._step("snapshot that ends", release)
        self._step("shared snapshot that ends", end_shared)
        self._step("consumer", consume)

    def _commit(self, client: Client, number: int) -> None:
        rows = dict.fromkeys(range(100, 104), f"transaction {number}")

        def commit() -> None:
            with client.transaction(id=f"id-{number}") as transaction:
                for name in (PLAIN, _DIVIDED):
                    transaction.upsert(client.table(name), _rows(rows), columns=["k", "v"])
            for name in (PLAIN, _DIVIDED):
                self._now.rows[name] |= rows
            self._now.transactions.add(f"id-{number}")

        def back_up() -> None:
            client.create_backup()
            self._now.backups += 1

        self._step("transaction", commit)
        self._step("backup", back_up)

    def _feed(self, client: Client) -> None:
        rows = {k: f"fed {k}" for k in range(40)}

        def bootstrap() -> None:
            client.bootstrap(_FED, _rows(rows), primary_key=["k"], buckets=2, tablets=2)
            self._now.rows[_FED], self._now.columns[_FED] = rows, ["k", "v"]

        self._step("bootstrap", bootstrap)

    def check(self, url: str, moment: int, backups: Path) -> None:
        """Compares a server on what a cut at a moment has left with what was acknowledged before."""
        done = [step for step in self.steps if step.end <= moment]
        before = done[-1].after if done else State()
        pending = next((step for step in self.steps if step.start <= moment < step.end), None)
        with connect(url, operation_timeout=60) as client:
            found = _find(client)
            assert found.keys() in ({*before.rows}, {*(pending.after if pending else before).rows})
            assert client.damaged_tables() == []
            for name, (columns, rows) in found.items():
                _check_rows(name, rows, before, pending)
                assert columns in [
                    state.columns[name] for state in _states(before, pending) if name in state.columns
                ], name
            if pending is not None and pending.is_atomic:
                whole = [
                    state
                    for state in _states(before, pending)
                    if {name: rows for name, (_, rows) in found.items()} == state.rows
                ]
                assert whole, f"{pending.name} is applied in part"
            self._check_others(client, before, pending)
        with Wire(url) as wire:
            for each in before.shared:
                with pytest.raises(grpc.RpcError, match="it was released"):
                    wire.pin(PLAIN, lease_id=each, shared=True)
        manifests = list(backups.glob("manifests/*.json"))
        assert before.backups <= len(manifests) <= before.backups + 1

    def _check_others(self, client: Client, before: State, pending: StoryStep | None) -> None:
        if _LOCKED not in before.rows:
            return
        table = client.table(PLAIN)
        for each, rows in before.snapshots.items():
            assert _rows_of(table.scan().as_of(client.adopt_snapshot(each))) == rows
        listed = {snapshot.id for snapshot in client.snapshots(PLAIN)}
        assert not listed & before.ended, "a released snapshot is back"
        consumers = {each.id for each in table.consumers()}
        assert before.consumers <= consumers <= (pending.after if pending else before).consumers | before.consumers
        assert before.locks <= {name for lock in client.column_locks(_LOCKED) for name in lock.columns}
        for each in before.transactions:
            with client.transaction(id=each) as transaction:
                assert transaction.result is not None, f"the transaction {each} is forgotten"
        for bucket in client.check_table(PLAIN):
            assert bucket.is_consistent, bucket


def _states(before: State, pending: StoryStep | None) -> list[State]:
    return [before] if pending is None else [before, pending.after]


def _find(client: Client) -> dict[str, tuple[list[str], dict[int, str]]]:
    found = {}
    for table in client.tables():
        found[table.name] = (table.schema.names, _rows_of(table.scan(columns=["k", "v"])))
    return found


def _check_rows(name: str, rows: dict[int, str], before: State, pending: StoryStep | None) -> None:
    possible = [state.rows.get(name, {}) for state in _states(before, pending)]
    keys = {k for each in (rows, *possible) for k in each}
    wrong = {k: rows.get(k) for k in keys if rows.get(k) not in [each.get(k) for each in possible]}
    assert not wrong, f"{name} has {wrong}, and may have { {k: [each.get(k) for each in possible] for k in wrong} }"


def _rows_of(scan: Any) -> dict[int, str]:
    rows = scan.to_arrow()
    return dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))


def _rows(rows: dict[int, str]) -> pa.Table:
    return pa.table({"k": list(rows), "v": list(rows.values())}, schema=_SCHEMA)
