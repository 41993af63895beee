"""A transaction that is repeated after a restore is applied once, if all of its tables have its rows."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import InvalidRequest, JobStep, TableNotFound, TableRecreated, UsageError, agg, sync
from streaming_server.clock import ServerClock
from streaming_server.engine.backups.restore import restore_tables
from streaming_server.engine.backups.restore_plan import plan_backup
from streaming_server.storage.backup.backup_manifest import find_backup, read_manifest
from streaming_server.storage.backup.backup_store import BackupStore
from streaming_server.storage.transactions.decisions import Decisions
from tests.support.earlier_version import WHEELS, EarlierServer, unpack
from tests.support.server_process import ServerProcess
from tests.support.workers import names_of_workers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


WORKERS = 2
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("n", pa.int64())])
# Tables of different workers.
(SUMS,), (OTHER,) = names_of_workers(WORKERS, "restored")


@contextmanager
def serving(path: Path, data: str = "data", workers: int = 1) -> Iterator[sync.Client]:
    options = ("--backup-location", str(path / "backups"), "--workers", str(workers))
    with ServerProcess(path / data, *options) as server, sync.connect(server.url) as client:
        yield client


def create(client: sync.Client, name: str, **options: Any) -> None:
    """Creates a table of sums, which shows a row that is written twice."""
    client.create_table(
        name, SCHEMA, primary_key=["k"], buckets=2, merge_engine="aggregate", aggregators={"n": agg.sum()}, **options
    )


def add(client: sync.Client, id_: str, number: int, names: Sequence[str] = (SUMS,)) -> bool:
    """Adds a number to a row of each table, in a transaction with an id. Returns whether the transaction is new."""
    with client.transaction(id=id_) as transaction:
        is_new = transaction.result is None
        for name in names:
            transaction.upsert(client.table(name), [{"k": 1, "n": number}])
    return is_new


def total(client: sync.Client, name: str = SUMS) -> int:
    row = client.table(name).get(1)
    return 0 if row is None else row["n"]


def restore(path: Path, data: str, name: str, buckets: int | None = None) -> None:
    """Restores the table of sums of the newest backup under a name."""
    store = BackupStore(str(path / "backups"))
    plan = plan_backup(read_manifest(store, find_backup(store, "latest")))
    restore_tables(store, plan, path / data, {SUMS: name}, buckets=buckets)


def back_up(client: sync.Client) -> None:
    """Commits `job:1` and `both:1`, creates a backup, and commits `job:2`, `job:3` and `both:2`."""
    create(client, SUMS)
    create(client, OTHER)
    add(client, "job:1", 1)
    add(client, "both:1", 10, (SUMS, OTHER))
    client.create_backup()
    add(client, "job:2", 100)
    add(client, "job:3", 1_000)
    add(client, "both:2", 10_000, (SUMS, OTHER))


@pytest.mark.breadth
@pytest.mark.parametrize("workers", [1, pytest.param(WORKERS, marks=pytest.mark.soak)])
def test_repeated_transactions_are_applied_once_after_one_table_is_restored_to_its_directory(
    tmp_path: Path, workers: int
) -> None:
    with serving(tmp_path, workers=workers) as client:
        back_up(client)
        add(client, "other:1", 7, (OTHER,))
        client.drop_table(SUMS)
    restore(tmp_path, "data", SUMS)
    for _ in range(2):
        with serving(tmp_path, workers=workers) as client:
            # The other table keeps what it had.
            assert not add(client, "other:1", 7, (OTHER,))
            assert not add(client, "job:1", 1)
            assert not add(client, "both:1", 10, (SUMS, OTHER))
            assert (total(client), total(client, OTHER)) == (11, 10_017)
    with serving(tmp_path, workers=workers) as client:
        # The restored table lacks the rows of these.
        assert add(client, "job:2", 100)
        assert add(client, "job:3", 1_000)
        assert add(client, "both:2", 10_000, (SUMS,))
        assert total(client) == 11_111
    with serving(tmp_path, workers=workers) as client:
        for number in (1, 2, 3):
            assert not add(client, f"job:{number}", 1)


def test_a_restored_commit_belongs_to_the_principal_of_its_transaction(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        create(client, SUMS)
        create(client, OTHER)
        for id_, name, principal in (("sums:1", SUMS, "etl"), ("other:1", OTHER, "ann"), ("free:1", OTHER, None)):
            with client.transaction(id=id_, principal=principal) as transaction:
                transaction.upsert(client.table(name), [{"k": 1, "n": 1}])
        client.create_backup()
        client.drop_table(SUMS)
    stored = read_manifest(store := BackupStore(str(tmp_path / "backups")), find_backup(store, "latest")).to_json()
    assert not any("principal" in each for each in stored["committed"]), "version 0.1.0 could not read it there"
    for data, kept in (("data", {"sums:1": "etl", "other:1": "ann", "free:1": ""}), ("new", {"sums:1": "etl"})):
        restore(tmp_path, data, SUMS)
        with closing(Decisions(tmp_path / data / "transactions", ServerClock())) as log:
            assert {each.id: each.principal for each in log.take_finished()} == kept


@pytest.mark.breadth
def test_a_transaction_is_applied_again_after_only_one_of_its_tables_is_restored(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        back_up(client)
    for data, buckets in (("new", None), ("wider", 3)):
        restore(tmp_path, data, SUMS, buckets)
        with serving(tmp_path, data) as client:
            create(client, OTHER)
            assert not add(client, "job:1", 1)
            assert add(client, "both:1", 10, (SUMS, OTHER))
            assert total(client, OTHER) == 10


@pytest.mark.breadth
def test_a_table_restored_under_another_name_does_not_change_what_is_remembered(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        back_up(client)
    restore(tmp_path, "data", "restored.copy")
    with serving(tmp_path) as client:
        for number in (1, 2, 3):
            assert not add(client, f"job:{number}", 1)
        assert not add(client, "both:2", 10_000, (SUMS, OTHER))
        assert add(client, "job:4", 5)
        assert (total(client), total(client, "restored.copy")) == (11_116, 11)
    restore(tmp_path, "new", "restored.copy")
    with serving(tmp_path, "new") as client:
        # The rows go to a table that lacks them.
        create(client, SUMS)
        assert add(client, "job:1", 1)


def step(number: int, accepted: str = "") -> dict[str, Any]:
    """Returns the arguments of transaction `job:N`, which follows `job:N-1`."""
    follows = f"job:{number - 1}" if number else ""
    job = JobStep(table=SUMS, follows=follows, accepted_incarnation=accepted)
    return {"id": f"job:{number}", "job": job}


def run_step(client: sync.Client, number: int, *, writes: bool = True, accepted: str = "") -> bool:
    """Runs transaction `job:N`, which adds 10**N to a row of the table. Returns whether it is new."""
    with client.transaction(**step(number, accepted)) as transaction:
        if writes:
            transaction.upsert(client.table(SUMS), [{"k": 1, "n": 10**number}])
        return transaction.result is None or bool(transaction.token)


@pytest.mark.represented_by("1-1")
@pytest.mark.parametrize(
    ("workers", "tablets"), [(1, 1), pytest.param(WORKERS, 1, marks=pytest.mark.soak), (WORKERS, 2)]
)
def test_a_job_continues_only_in_a_table_that_has_what_it_has_committed(
    tmp_path: Path, workers: int, tablets: int
) -> None:
    with serving(tmp_path, workers=workers) as client:
        create(client, SUMS, tablets=tablets)
        # As by a client of an earlier version, which does not say which table the job fills.
        assert add(client, "job:0", 1)
        assert run_step(client, 1, writes=False)
        client.create_backup()
        assert run_step(client, 2)
        transaction = client.transaction(**step(3))
        assert transaction.result is None
        client.drop_table(SUMS)
        create(client, SUMS, tablets=tablets)
        # Nothing was written, but the transaction is one of the table that was dropped.
        with pytest.raises(TableNotFound, match="dropped"):
            transaction.commit()
        transaction.abort()
        for number in (2, 3):
            with pytest.raises(
                TableRecreated, match=r'lacks the rows of the transaction "job:2".*not known to have any'
            ):
                run_step(client, number)
        client.drop_table(SUMS)
        with pytest.raises(TableNotFound):
            run_step(client, 3)
    restore(tmp_path, "data", SUMS)
    with serving(tmp_path, workers=workers) as client:
        with pytest.raises(TableRecreated, match=r'"job:2": the last one .* is "job:1"') as caught:
            run_step(client, 3)
        assert caught.value.details["last"] == "job:1"
        assert client.transactions() == []
        # What the table has is not written again, and what it lacks is.
        assert not run_step(client, 0)
        assert not run_step(client, 1)
        assert total(client) == 1
        assert run_step(client, 4, accepted=caught.value.details["incarnation"])
        assert run_step(client, 5)
        assert total(client) == 110_001


@pytest.mark.breadth
def test_a_job_runs_on_a_server_of_an_earlier_version(tmp_path: Path) -> None:
    packages = unpack(WHEELS[-1], tmp_path / "packages")
    with EarlierServer(packages, tmp_path / "data") as server, sync.connect(server.url) as client:
        client.create_table(SUMS, SCHEMA, primary_key=["k"])
        for number in (0, 1):
            assert run_step(client, number)
            assert not run_step(client, number)


def test_a_job_needs_transactions_with_ids_and_a_table(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        with pytest.raises(UsageError, match="job needs a transaction with an id"):
            client.transaction(job=JobStep(table=SUMS))
        with pytest.raises(InvalidRequest, match="is not a table name"):
            assert client.transaction("job:0", job=JobStep(table=f"{SUMS}#0")).token
        with pytest.raises(TableNotFound, match=SUMS):
            assert client.transaction(**step(0)).token
