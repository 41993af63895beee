"""Checks a complete data directory that no server uses, and says what to do about what is wrong.

Every row, index entry and change is decoded, every checksum is verified, and counts are compared. Only
`CheckedPart.recover` changes anything.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, ParamSpec

from scankv.model.errors import DataLoss, InternalError, ScanKvError
from scankv.model.names import table_of, with_table_names
from streaming_server.clock import ServerClock
from streaming_server.engine.backups.recovery import Recovery, read_transaction_log, read_watermark
from streaming_server.engine.bucket.bucket_checker import BucketChecker
from streaming_server.scan.changes.log_token import parse_log_token
from streaming_server.storage.bucket.bucket import Bucket
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.changelog.verification import count_changes
from streaming_server.storage.columnar.columnar_base import ColumnarBase
from streaming_server.storage.files.checked_json import find_checked_json
from streaming_server.storage.rocks.store_files import is_complete
from streaming_server.storage.rocks.store_options import RocksResources
from streaming_server.storage.rows.table_codec import TableCodec
from streaming_server.storage.snapshots.checkpoint import Checkpoint
from streaming_server.storage.snapshots.snapshots import ViewDirectory
from streaming_server.storage.tables.catalog import Catalog, table_directory
from streaming_server.storage.tables.consumers import ConsumerDirectory
from streaming_server.storage.tables.data_directory import DataDirectory
from streaming_server.storage.transactions.staging import StagingDirectory, list_tokens

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition

_P = ParamSpec("_P")

_RESTORE: Final = "restore the table from a backup (`scankv backups restore`)"
_CACHE_BYTES: Final = 32 << 20
_READ_ONLY: Final = InternalError("the data directory is only checked")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPart:
    """One part of a data directory, with what is wrong with it.

    Attributes:
        table: The table. Empty: the part belongs to the whole directory.
        part: The part, such as `bucket 3`.
        count: How many rows, changes, records or files were read.
        problem: What is wrong. Empty: nothing.
        advice: What to do about it.
        recover: Restores what can be restored, and returns what it has done, for people. None: nothing can be restored.
    """

    table: str = ""
    part: str
    count: int = 0
    problem: str = ""
    advice: str = ""
    recover: Callable[[], str] | None = None


class OfflineCheck:
    """A check of one data directory. The check locks it, so no server can start.

    Args:
        data: The data directory.

    Raises:
        UsageError, ForeignDirectory, DirectoryLocked, NewerFormat, DataLoss: The directory cannot be checked.
    """

    def __init__(self, data: Path) -> None:
        self._directory = DataDirectory(data, is_changed=False)
        self._catalog = Catalog(self._directory)
        self._clock = ServerClock()
        self._resources = RocksResources.of_sizes(
            block_cache_bytes=_CACHE_BYTES, write_buffer_bytes=_CACHE_BYTES, files_per_store=64
        )
        self._roots = (self._directory.path, *self._directory.parts())
        transactions = [root / "transactions" for root in self._roots]
        self._recovery = Recovery(data, self._catalog, transactions, self._resources, self._clock)

    async def run(self) -> AsyncIterator[CheckedPart]:
        """Checks one part after another, and yields each when it is done."""
        for root in self._roots:
            of_worker = "" if root == self._directory.path else f" of worker {root.name}"
            clock, transactions = root / "clock.json", root / "transactions"
            yield _found(
                f"clock{of_worker}",
                partial(_count_file, clock),
                _CLOCK,
                recover=self._removal(clock, "service time begins at zero"),
            )
            yield _found(f"transaction log{of_worker}", partial(_read_transaction_log, transactions), _TRANSACTION_LOG)
            for token in list_tokens(transactions):
                staged = StagingDirectory(transactions, token)
                yield _found(f"transaction {token}{of_worker}", partial(_count_parts, staged), _STAGED)
        for name, why in self._catalog.unusable.items():
            yield CheckedPart(table=name, part="definition", problem=why, advice=_RESTORE)
        for name in self._catalog.names():
            async for part in self._check_table(self._catalog.get(name), self._catalog.path(name)):
                # Tablets have no names for users, and the numbers of buckets are unique within the table.
                yield replace(part, table=table_of(name), problem=with_table_names(part.problem, [name]))

    def close(self) -> None:
        """Unlocks the directory."""
        self._directory.close()

    async def _check_table(self, definition: TableDefinition, path: Path) -> AsyncIterator[CheckedPart]:
        for number in definition.own_buckets:
            bucket_path = path / "buckets" / f"{number:04}"
            async for part in self._check_bucket(definition, number, bucket_path):
                yield part
            for base in sorted((path / "bases" / f"{number:04}").glob("*")):
                if base.suffix == ".tmp":
                    continue  # It is being built, or a crash has left it.
                yield _found(
                    f"columnar base {base.name} of bucket {number}",
                    partial(_read_base, base, definition.name),
                    "remove its directory: the server builds it again",
                    definition.name,
                    recover=self._removal(base, "the server builds it again"),
                )
        of_tablet = "" if definition.tablet is None else f" of tablet {definition.tablet}"
        for view in sorted((path / "snapshots").glob("*")):
            directory = ViewDirectory(path, view.name)
            if not directory.is_kept:
                continue  # It is being created or removed, or a crash has left it.
            yield _found(
                f"snapshot view {view.name}{of_tablet}",
                partial(self._read_view, directory),
                "release its snapshots: they cannot be read",
                definition.name,
                recover=self._removal(view, "its snapshots are gone"),
            )
        for consumer, record in ConsumerDirectory(path).read():
            problem = record.message if isinstance(record, DataLoss) else ""
            yield CheckedPart(
                table=definition.name,
                part=f"consumer {consumer}{of_tablet}",
                count=1,
                problem=problem,
                advice="reset the consumer: `scankv consumers reset`" if problem else "",
                recover=self._removal(path / "consumers" / f"{consumer}.json", "the consumer is gone"),
            )

    def _removal(self, path: Path, consequence: str) -> Callable[[], str]:
        return partial(self._recovery.remove, path, consequence)

    def _unarchived(self, recover: Callable[_P, str], *args: _P.args, **kwargs: _P.kwargs) -> Callable[[], str]:
        """Returns a recovery of a bucket that also ends the archive, which cannot follow the recovery."""

        def run() -> str:
            self._directory.forget_archived()
            return recover(*args, **kwargs)

        return run

    async def _check_bucket(self, definition: TableDefinition, number: int, path: Path) -> AsyncIterator[CheckedPart]:
        location = f"bucket {number}"
        if not is_complete(path):
            problem = self._why_lost(definition, number, path)
            yield CheckedPart(
                table=definition.name,
                part=location,
                problem=problem,
                advice=_RESTORE if problem else "",
                recover=self._unarchived(self._recovery.forget_bucket, path, definition),
            )
            return
        try:
            bucket = Bucket(
                path,
                location,
                compression=definition.options.compression,
                resources=self._resources,
                clock=self._clock,
                read_only=_READ_ONLY,
            )
        except ScanKvError as error:
            yield CheckedPart(
                table=definition.name,
                part=location,
                problem=error.message,
                advice=_RESTORE,
                recover=self._unarchived(self._recovery.reopen_bucket, path, definition),
            )
            return
        try:
            findings = await BucketChecker(number, bucket, TableCodec.of(definition), lambda error: error).run()
            problem = findings.problem
            yield CheckedPart(
                table=definition.name,
                part=location,
                count=findings.rows,
                problem=problem,
                advice=_RESTORE if problem else "",
            )
            for index in findings.indexes:
                problem = index.problem
                yield CheckedPart(
                    table=definition.name,
                    part=f"index ({', '.join(index.columns)}) of {location}",
                    count=index.entries,
                    problem=problem,
                    advice="drop the index and add it again: `scankv indexes`" if problem else "",
                    recover=self._unarchived(self._recovery.drop_index, path, definition, index.columns),
                )
            yield _found(f"metadata of {location}", bucket.check_metadata, _RESTORE, definition.name)
            yield _found(
                f"changelog of {location}",
                partial(count_changes, bucket.log, definition),
                f"readers of the changes fail there: {_RESTORE}",
                definition.name,
            )
        finally:
            bucket.close()

    def _why_lost(self, definition: TableDefinition, number: int, path: Path) -> str:
        """Returns what shows that a bucket without files had changes. Empty: nothing does, so it was never used."""
        durable = read_watermark(path)
        if durable is not None:
            lost = count_of(durable)
            return f"its files are missing, and it had {lost:,} changes" if lost else ""
        if path.with_suffix(".durable").exists():
            return "its files are missing, and its durable watermark cannot be read"
        table = path.parents[1]
        positions = [*_positions_of_consumers(table if definition.tablet is None else table_directory(table))]
        for view in (table / "snapshots").glob("*"):
            with suppress(DataLoss):
                pinned = ViewDirectory(table, view.name).manifest().buckets
                positions.append({number: one.log_offset for number, one in pinned.items()})
        if any(count_of(each.get(number, 0)) for each in positions):
            return "its files and its durable watermark are missing, and consumers or snapshots have positions in it"
        return ""

    def _read_view(self, view: ViewDirectory) -> int:
        manifest, rows = view.manifest(), 0
        for number, pinned in manifest.buckets.items():
            compression = manifest.definition.options.compression
            location = f"bucket {number}"
            checkpoint = Checkpoint(
                view.bucket(number), location, pinned, compression=compression, resources=self._resources
            )
            checkpoint.close()
            rows += pinned.rows or 0
        return rows


_CLOCK: Final = "remove the file: service time begins at zero, and nothing expires early"
_TRANSACTION_LOG: Final = (
    "restore the directory from a backup; without the log, whether transactions were committed is unknown"
)
_STAGED: Final = "if it was committed, give it up: `scankv transactions give-up`"


def _found(
    part: str, read: Callable[[], int], advice: str, table: str = "", recover: Callable[[], str] | None = None
) -> CheckedPart:
    """Reads a part, and reports the damage that reading it raises."""
    try:
        return CheckedPart(table=table, part=part, count=read())
    except ScanKvError as error:
        problem = error.message
    except (OSError, ValueError, LookupError, TypeError) as error:
        problem = f"it cannot be read: {error!r}"
    return CheckedPart(table=table, part=part, problem=problem, advice=advice, recover=recover)


def _read_transaction_log(directory: Path) -> int:
    return len(read_transaction_log(directory))


def _count_parts(staged: StagingDirectory) -> int:
    return len(staged.load_parts())


def _count_file(path: Path) -> int:
    return int(find_checked_json(path) is not None)


def _positions_of_consumers(table: Path) -> Iterator[Mapping[int, int]]:
    for _, record in ConsumerDirectory(table).read():
        with suppress(ScanKvError):
            if not isinstance(record, DataLoss):
                yield parse_log_token(record.token).position.offsets


def _read_base(path: Path, table: str) -> int:
    base, rows = ColumnarBase.open(path, table), 0
    for number in range(len(base)):
        base.message(number)
        base.keys(number)
        rows += base.rows_in(number)
    return rows
