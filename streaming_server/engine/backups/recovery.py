"""Restores what can be restored of damaged parts of a data directory, when no server uses it.

Rule: nothing is destroyed. What is replaced or removed is kept below `damaged/` in the data directory, at its path.

Rule: no position in lost changes ever identifies other changes. A recovered bucket continues in an epoch after all
earlier ones, the last of which its durable watermark names. If the watermark is lost, too, the table becomes a new
incarnation.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scankv.model.errors import DataLoss
from scankv.model.names import table_of
from scankv.model.tables.schema import incarnation_of
from streaming_server.storage.backup.backup_store import instant_id
from streaming_server.storage.backup.backup_writer import link_files
from streaming_server.storage.bucket.bucket import Bucket
from streaming_server.storage.bucket.bucket_state import STATE_KEY, BucketState, load_state
from streaming_server.storage.changelog.offsets import count_of, epoch_of
from streaming_server.storage.files.checked_json import make_directory, sync_directory
from streaming_server.storage.files.durable_watermark import DurableWatermark
from streaming_server.storage.files.frames import write_at
from streaming_server.storage.rocks.store import RocksStore
from streaming_server.storage.transactions.decisions import with_incarnations
from streaming_server.storage.transactions.transaction_log import TransactionLog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.storage.rocks.store_options import RocksResources
    from streaming_server.storage.tables.catalog import Catalog

KEPT: Final = "damaged"
"""The directory of what recoveries have replaced."""

_NEW_INCARNATION: Final = (
    "; its durable watermark is lost, too, so the table is now a new incarnation, which refuses all earlier positions"
)


class Recovery:
    """Recovers parts of one data directory. Its methods block, and return what they have done, for people.

    Args:
        data: The data directory, which the caller has locked.
        catalog: Its tables.
        transactions: The directories of its transaction logs.
        resources: For opening buckets.
        clock: For opening buckets.
    """

    def __init__(
        self,
        data: Path,
        catalog: Catalog,
        transactions: Sequence[Path],
        resources: RocksResources,
        clock: ServerClock,
    ) -> None:
        self._data = data
        self._catalog = catalog
        self._transactions = transactions
        self._resources = resources
        self._clock = clock
        self._kept = data / KEPT / instant_id(clock.commit_micros())

    def remove(self, path: Path, consequence: str) -> str:
        """Removes a file or a directory that the server can do without."""
        kept = self._keep(path)
        path.rename(kept)
        sync_directory(kept.parent)
        sync_directory(path.parent)
        return f"{consequence}; it is kept as {kept}"

    def forget_bucket(self, path: Path, definition: TableDefinition) -> str:
        """Lets a bucket whose files are missing begin without rows.

        Raises:
            DataLoss: Its watermark is missing too, and a committed transaction has yet to be applied to the table.
        """
        durable = self._end_history(path, definition)
        if path.exists():
            self.remove(path, "")
        self._remove_bases(path)
        store = RocksStore(
            path, f"the bucket in {path}", compression=definition.options.compression, resources=self._resources
        )
        self._store_state(store, path, load_state(store), durable)
        if durable is None:
            return f"the bucket is now empty: all of its changes are lost{_NEW_INCARNATION}"
        return f"the bucket is now empty: {_lost(count_of(durable))}"

    def drop_index(self, path: Path, definition: TableDefinition, columns: tuple[str, ...]) -> str:
        """Removes the entries of an index, which the server then builds again."""
        bucket = Bucket(
            path,
            str(path),
            compression=definition.options.compression,
            resources=self._resources,
            clock=self._clock,
        )
        try:
            bucket.set_indexes([each.id for each in definition.indexes if each.columns != columns])
            bucket.sync(bucket.state.log_offset)
        finally:
            bucket.close()
        return "the server builds it again"

    def reopen_bucket(self, path: Path, definition: TableDefinition) -> str:
        """Opens a bucket with the writes before the damage in its write-ahead log. The rest is lost.

        Raises:
            DataLoss: More is damaged than the write-ahead log.
        """
        # On a copy, so that the bucket stays as it was if that fails, and its history ends before it loses anything.
        trial = self._data / "trash" / f"recovered-{uuid.uuid4().hex}"
        link_files(path, trial)
        try:
            self._open_before_damage(trial, path, definition).close()
        finally:
            shutil.rmtree(trial, ignore_errors=True)
        durable = self._end_history(path, definition)
        kept = self._keep(path)
        link_files(path, kept)
        sync_directory(kept)
        sync_directory(kept.parent)
        store = self._open_before_damage(path, path, definition)
        try:
            state = load_state(store)
        except BaseException:
            store.close()
            raise
        self._remove_bases(path)  # They may have changes that are lost.
        self._store_state(store, path, state, durable)
        kept_in = f"the files as they were are kept in {kept}"
        if durable is None:
            found = f"the bucket has {state.count:,} changes, and whether later changes are lost is unknown"
            return f"{found}{_NEW_INCARNATION}; {kept_in}"
        lost = max(0, count_of(durable) - state.count)
        if not lost:
            return "every acknowledged change is there"
        return f"{_lost(lost)}, the last of the bucket; {kept_in}"

    def _open_before_damage(self, path: Path, bucket: Path, definition: TableDefinition) -> RocksStore:
        """Opens the files of a bucket with the writes before the damage. Raises DataLoss."""
        return RocksStore(
            path,
            f"the bucket in {bucket}",
            compression=definition.options.compression,
            resources=self._resources,
            point_in_time=True,
        )

    def _end_history(self, path: Path, definition: TableDefinition) -> int | None:
        """Ends the history of the table of a bucket, durably, before the bucket loses changes.

        Afterwards, versions and writers of the table as it was are refused.

        Returns:
            The durable watermark of the bucket. None: it is lost, and the table is a new incarnation.

        Raises:
            DataLoss: It is lost, and a committed transaction has yet to be applied to the table.
        """
        table = self._catalog.get(table_of(definition.name))
        durable = read_watermark(path)
        if durable is not None:
            self._catalog.replace(replace(table, losses=table.losses + 1))
            return durable
        if any(_is_pending(read_transaction_log(each), table) for each in self._transactions):
            raise DataLoss(
                f"a committed transaction has yet to be applied to table {table.name}, so the table cannot become a "
                "new incarnation: start the server, and give the transaction up with `scankv transactions give-up`",
                table=table.name,
            )
        incarnation = uuid.uuid4().hex
        # Before the table has it, so that no repeated transaction is taken for a new one.
        for each in self._transactions:
            _rename_commits(each, {table.incarnation: incarnation})
        self._catalog.replace(replace(table, incarnation=incarnation, has_predecessor=True, losses=0))
        for snapshots in self._catalog.path(table.name).glob("**/snapshots"):
            self.remove(snapshots, "")
        return None

    def _store_state(self, store: RocksStore, path: Path, state: BucketState, durable: int | None) -> None:
        """Stores, durably, that a bucket continues from a state in an epoch that it has never had. Closes the store."""
        try:
            state = replace(state, clean=True).in_epoch(max(state.epoch, epoch_of(durable or 0)) + 1)
            batch = store.batch()
            batch.put_meta(STATE_KEY, state.to_bytes())
            store.write(batch)
            store.sync()
        finally:
            store.close()
        file = path.with_suffix(".durable")
        if file.exists():
            kept = self._keep(file)
            write_at(kept, file.read_bytes(), 0, sync=True)
            sync_directory(kept.parent)
            if durable is None:
                file.unlink()
        watermark = DurableWatermark(file)
        try:
            watermark.write(state.log_offset)
            watermark.sync()
        finally:
            watermark.close()
        sync_directory(path.parent)

    def _remove_bases(self, path: Path) -> None:
        bases = path.parents[1] / "bases" / path.name
        if bases.exists():
            self.remove(bases, "")

    def _keep(self, path: Path) -> Path:
        """Returns where a path is kept, in a directory that exists."""
        kept = self._kept / path.relative_to(self._data)
        make_directory(kept.parent)
        return kept


def read_watermark(path: Path) -> int | None:
    """Returns the durable watermark beside a bucket. None: it is missing or damaged."""
    file = path.with_suffix(".durable")
    if not file.exists() or not file.stat().st_size:
        return None
    watermark = DurableWatermark(file)
    try:
        return watermark.read()
    finally:
        watermark.close()


def read_transaction_log(directory: Path) -> list[dict[str, Any]]:
    """Returns the records of a transaction log. Reads a copy, because opening removes what a crash has left."""
    with tempfile.TemporaryDirectory() as copied:
        for file in directory.glob("log*"):
            shutil.copy(file, copied)
        log = TransactionLog(Path(copied))
        log.close()
        return log.records


def _is_pending(records: Sequence[dict[str, Any]], table: TableDefinition) -> bool:
    """Whether a transaction log has a decision about a table that is not applied yet."""
    pending: dict[str, set[str]] = {}
    for record in records:
        for kind, content in record.items():
            if kind == "principal":
                continue
            if kind in ("decided", "prepared"):
                pending[content["token"]] = set(map(incarnation_of, content["tables"].values()))
            elif kind != "log":
                pending.pop(content if kind == "undone" else content["token"], None)
    return table.incarnation in set().union(*pending.values())


def _lost(count: int) -> str:
    return f"{count:,} acknowledged {'change is' if count == 1 else 'changes are'} lost"


def _rename_commits(directory: Path, new: Mapping[str, str]) -> None:
    """Has a transaction log remember its commits for new incarnations of tables, durably.

    A damaged log is left as it is: no server can commit transactions with it.
    """
    with suppress(DataLoss), closing(TransactionLog(directory)) as log:
        records = [
            {**record, "done": with_incarnations(record["done"], new)} if "done" in record else record
            for record in log.records
        ]
        if records != log.records:
            log.rewrite(records)
