"""A workload that writes to disk in every way that a server has, and what must be true of its tables at any time."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from aio_client import (
    DiskFailed,
    DiskFull,
    InvalidRequest,
    ScanKvError,
    StartFrom,
    StopAt,
    TableExists,
    TableNotFound,
    Unavailable,
)
from aio_client.sync import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from aio_client.sync import Client, Table

SETTINGS: Final = {
    "write_buffer_bytes": 8 << 20,
    "base_maintenance_seconds": 0.02,
    "base_cpu_share": 1,
    "base_changed_share": 0,
    "base_max_write_amplification": 1e12,
    "base_min_rows": 1,
    "log_maintenance_seconds": 0.05,
    "bucket_idle_seconds": 1,
}
"""Settings of the server under which maintenance runs all the time."""

MAIN: Final = "disk.main"
OTHER: Final = "disk.other"
_PASSING: Final = "disk.passing"
_LOCKED: Final = "disk.locked"
_SCHEMA: Final = pa.schema([("k", pa.int64()), ("v", pa.string())])
_ROWS: Final = 40
_ONLY_WRITE: Final = frozenset(
    {
        "upsert",
        "upsert of one row",
        "upserts of one row",
        "delete",
        "delete from the other table",
        "transaction",
        "transaction of many rows",
        "writer",
    }
)
"""The steps that read nothing, and so have no other error than that of the disk."""
_BOTH: Final = range(1000, 1010)
"""The keys that transactions write to both tables."""


class DiskStory:
    """Runs steps that write, some of which may find that the disk fails, and remembers what they must have left.

    Attributes:
        refused: The errors of the steps that failed, by the name of the step.
        is_failing: Whether the disk may fail. Then a table may refuse to be read if a committed transaction is not
            applied to it, or if its last write is not durable because `syncs_work` is false.
        syncs_work: Whether the disk can make anything durable.
    """

    def __init__(self, url: str) -> None:
        self._patient: Client = connect(url, operation_timeout=30)
        self._hasty: Client = connect(url, operation_timeout=4)
        self.is_failing = False
        self.syncs_work = True
        self._possible: dict[str, dict[int, set[str | None]]] = {MAIN: {}, OTHER: {}}
        self.refused: list[tuple[str, ScanKvError]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._patient.close()
        self._hasty.close()

    @property
    def _client(self) -> Client:
        return self._hasty if self.is_failing else self._patient

    def create(self) -> None:
        """Creates the tables, each of which has a row in each bucket, so that its files exist."""
        self._client.create_table(
            MAIN,
            _SCHEMA,
            primary_key=["k"],
            buckets=2,
            indexes=["v"],
            columnar_base="eager",
            log_retention_bytes=20_000,
        )
        self._client.create_table(OTHER, _SCHEMA, primary_key=["k"], buckets=1, changelog="upsert")
        self._client.create_table(_LOCKED, _SCHEMA, primary_key=["k"], buckets=1)
        for name in (MAIN, OTHER):
            self._upsert(name, range(_ROWS), "first")

    def run(self, chapter: str, after_failure: Callable[[], None] = lambda: None) -> None:
        """Runs all steps. Steps whose write finds that the disk fails are recorded in `refused`.

        Args:
            chapter: Names the values that are written.
            after_failure: Called after the first step that fails.
        """
        steps: list[tuple[str, Callable[[], object]]] = [
            ("upsert", lambda: self._upsert(MAIN, range(_ROWS), f"{chapter}-{'x' * 200}")),
            ("upsert of one row", lambda: self._upsert(OTHER, [3], chapter)),
            ("delete", lambda: self._delete(MAIN, range(5))),
            ("transaction", lambda: self._commit(chapter)),
            ("snapshot", self._pin),
            ("consumer", self._consume),
            ("new index", lambda: self._alter(add_indexes=["v"], wait=False)),
            ("dropped index", lambda: self._alter(drop_indexes=["v"])),
            ("new column", lambda: self._alter(add_columns=pa.schema([(f"c{chapter}", pa.string())]))),
            ("table", self._create_and_drop),
            ("column lock", self._lock),
            ("writer", lambda: self._write_as(chapter)),
            ("upserts of one row", lambda: self._upsert_one_by_one(range(10), chapter)),
            ("transaction of many rows", lambda: self._commit(f"{chapter}-again")),
            ("delete from the other table", lambda: self._delete(OTHER, range(5, 8))),
        ]
        for name, step in steps:
            try:
                step()
            except (DiskFull, DiskFailed) as error:
                self.refused.append((name, error))
                if len(self.refused) == 1:
                    after_failure()
            except Unavailable as error:
                if name in _ONLY_WRITE:
                    raise
                self._check_unreadable(error)

    def check_rows(self) -> None:
        """Reads both tables in several ways and compares them with what was acknowledged."""
        known: dict[str, dict[int, str]] = {}
        for name, possible in self._possible.items():
            table = self._client.table(name)
            try:
                rows = table.scan(columns=["k", "v"]).to_arrow()
            except Unavailable as error:
                self._check_unreadable(error)
                continue
            found = dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))
            assert len(found) == len(rows), f"{name} has a key twice"
            wrong = {k: found.get(k) for k in {*found, *possible} if found.get(k) not in possible.get(k, {None})}
            assert not wrong, f"{name} has {wrong}, and may have { {k: possible.get(k) for k in wrong} }"
            # What was read once is durable.
            self._possible[name] = {k: {found.get(k)} for k in possible}
            assert table.count() == len(found)
            some = next(iter(found))
            assert table.get(some) == {**(table.get(some) or {}), "k": some, "v": found[some]}
            known[name] = found
        if len(known) < len(self._possible):
            return
        for k in _BOTH:
            assert known[MAIN].get(k) == known[OTHER].get(k), f"the transaction that wrote {k} was applied in part"
        by_index = self._client.table(MAIN).scan().where(f"v = '{known[MAIN][20]}'").to_arrow()["k"].to_pylist()
        assert 20 in by_index

    def check_stored(self) -> None:
        """Lets the server verify everything that it stores of the tables."""
        for name in self._possible:
            for bucket in self._client.check_table(name):
                assert bucket.is_consistent, (name, bucket)

    def can_write(self) -> bool:
        """Whether every table takes writes to all of its buckets."""
        try:
            for name in self._possible:
                self._upsert(name, range(_ROWS), "probe")
        except (DiskFull, DiskFailed):
            return False
        return True

    def _check_unreadable(self, error: Unavailable) -> None:
        is_expected = "lacks rows of a committed transaction" in error.message or (
            "cannot be made durable" in error.message and not self.syncs_work
        )
        if not (self.is_failing and is_expected):
            raise error

    def _try(self, name: str, changes: Mapping[int, str | None], write: Callable[[Table], object]) -> None:
        """Makes a write, and remembers that the changes are made, or may be made when it fails."""
        possible = self._possible[name]
        for k, v in changes.items():
            possible.setdefault(k, {None}).add(v)
        write(self._client.table(name))
        possible.update({k: {v} for k, v in changes.items()})

    def _upsert(self, name: str, keys: range | list[int], value: str) -> None:
        changes: dict[int, str | None] = {k: f"{value}/{k}" for k in keys}
        self._try(name, changes, lambda table: table.upsert(_rows(changes), columns=["k", "v"]))

    def _upsert_one_by_one(self, keys: range, value: str) -> None:
        for k in keys:
            self._upsert(MAIN, [k], value)

    def _delete(self, name: str, keys: range) -> None:
        self._try(name, dict.fromkeys(keys), lambda table: table.delete(list(keys)))

    def _commit(self, value: str) -> None:
        changes: dict[int, str | None] = {k: f"{value}/{k}" for k in _BOTH}
        for possible in self._possible.values():
            for k, v in changes.items():
                possible.setdefault(k, {None}).add(v)
        with self._client.transaction() as transaction:
            for name in self._possible:
                transaction.upsert(self._client.table(name), _rows(changes), columns=["k", "v"])
        for possible in self._possible.values():
            possible.update({k: {v} for k, v in changes.items()})

    def _pin(self) -> None:
        table = self._client.table(MAIN)
        with table.snapshot(ttl=60) as snapshot:
            assert table.scan().as_of(snapshot).to_arrow().num_rows == snapshot.rows

    def _consume(self) -> None:
        changes = self._client.table(OTHER).changes(StartFrom.EARLIEST, StopAt.LATEST, consumer_id="c", clamp=True)
        with changes.stream() as stream:
            for _ in stream:
                pass
            stream.commit()

    def _alter(self, **changes: Any) -> None:
        # An earlier attempt may have failed after it had an effect.
        with suppress(InvalidRequest):
            self._client.alter_table(OTHER, **changes)

    def _create_and_drop(self) -> None:
        with suppress(TableExists):
            self._client.create_table(_PASSING, _SCHEMA, primary_key=["k"], buckets=1)
        try:
            self._client.table(_PASSING).upsert([{"k": 1, "v": "x"}])
        finally:
            with suppress(TableNotFound):
                self._client.drop_table(_PASSING)

    def _lock(self) -> None:
        # A lock stays if its end cannot be stored.
        table = self._client.table(_LOCKED)
        with table.lock_columns(["v"], owner="story", ttl=60, take_over=True) as lock:
            table.upsert([{"k": 1, "v": "locked"}], locks=[lock])

    def _write_as(self, value: str) -> None:
        changes: dict[int, str | None] = {k: f"{value}-by-writer/{k}" for k in range(12, 14)}

        def write(table: Table) -> None:
            with table.writer("story") as writer:
                writer.upsert(_rows(changes), columns=["k", "v"])

        self._try(MAIN, changes, write)


def _rows(changes: Mapping[int, str | None]) -> pa.Table:
    return pa.table({"k": pa.array(list(changes), pa.int64()), "v": pa.array(list(changes.values()), pa.string())})
