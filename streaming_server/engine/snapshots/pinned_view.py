"""A view of a table that pinned snapshots keep. It is opened when it is read, and all readers share it."""

from __future__ import annotations

import asyncio
import logging
from copy import copy
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from scankv.model.errors import DataLoss, InvalidRequest, ScanKvError
from scankv.model.names import table_of
from streaming_server.scan.chunk_source import View, total_rows
from streaming_server.scan.columnar.base_view import (
    BaseView,
    bases_for,
    buckets_with_bases,
    choose_read_path,
    consider_bases,
)
from streaming_server.scan.columnar.delta import DeltaView, MergedDelta
from streaming_server.scan.execution.explain import explain
from streaming_server.scan.execution.open_scan import open_scan
from streaming_server.scan.rows.index_choice import plan_reads, plan_reads_off_loop
from streaming_server.scan.rows.index_lookup import open_lookup
from streaming_server.scan.rows.locked_view import LockedView, complete_indexes
from streaming_server.storage.files.file_limit import check_files_left
from streaming_server.storage.rows.table_codec import TableCodec
from streaming_server.storage.snapshots.checkpoint import Checkpoint
from streaming_server.storage.snapshots.pinned_base import open_pinned_base

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from scankv.model.keys.key_range import KeyRange
    from scankv.model.keys.key_ranges import KeyRanges
    from scankv.model.tables.schema import TableDefinition
    from scankv.v1.scan_pb2 import ExplainScanResponse
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.scan.admission.live_scans import Abortable
    from streaming_server.scan.execution.open_scan import OpenedScan
    from streaming_server.scan.read_plan import ReadPlan
    from streaming_server.scan.row_reader import RowReader
    from streaming_server.scan.rows.index_choice import IndexChoice
    from streaming_server.scan.rows.index_lookup import IndexLookup
    from streaming_server.storage.changelog.log_span import LogSpan
    from streaming_server.storage.cursors.cursor import BucketCursor
    from streaming_server.storage.cursors.key_probe import KeyProbe
    from streaming_server.storage.cursors.ranges_cursor import RangesCursor
    from streaming_server.storage.rocks.store_options import RocksResources
    from streaming_server.storage.rows.row_codec import Decoder
    from streaming_server.storage.snapshots.snapshots import ViewDirectory, ViewManifest

_WHY_NONE: Final = (
    "the snapshot has no base of the bucket: it had none when the snapshot was taken, too much had been written since "
    "it was built, or it is damaged; leave `read_path` out"
)
_log = logging.getLogger(__name__)


class PinnedView:
    """One view on disk. Bound to the server's event loop.

    Args:
        table: The name of its table.
        directory: Its directory.
        manifest: Its manifest, or the DataLoss that reading it has raised.
        resources: Shared by all buckets of the process.
        executor: Runs blocking work.

    Attributes:
        table: The name of its table.
        view_id: The id of the view.
        leases: The ids of the leases that keep the view.
        users: The number of current users: scans, and calls that must not lose the view.
        lease_files: Held for every change of the files of its leases.
        splitting: Held while the keys are sampled, which happens once.
        removal: The task that deletes the view, once it has begun.
        executor: Runs blocking work.
    """

    def __init__(
        self,
        table: str,
        directory: ViewDirectory,
        manifest: ViewManifest | DataLoss,
        resources: RocksResources,
        executor: StorageExecutor,
    ) -> None:
        self.table = table
        self.directory = directory
        self.view_id = directory.view_id
        self.leases: set[str] = set()
        self.users = 0
        self.lease_files = asyncio.Lock()
        self.splitting = asyncio.Lock()
        self.removal: asyncio.Task[None] | None = None
        self._manifest = manifest
        self._resources = resources
        self.executor = executor
        self._opening = asyncio.Lock()
        self._open: dict[int, Checkpoint] = {}
        self._bases: dict[int, BaseView] = {}
        self._damaged_bases: set[int] = set()
        self._readers: WeakSet[Abortable] = WeakSet()
        self._gone: ScanKvError | None = None

    @property
    def is_readable(self) -> bool:
        """Whether its manifest could be read."""
        return not isinstance(self._manifest, DataLoss)

    @property
    def open_checkpoints(self) -> int:
        """The number of open checkpoints."""
        return len(self._open)

    @property
    def manifest(self) -> ViewManifest:
        """The manifest of the view. Raises DataLoss when it cannot be read."""
        if isinstance(self._manifest, DataLoss):
            raise copy(self._manifest)
        return self._manifest

    def select_buckets(self, numbers: Sequence[int] | None) -> tuple[int, ...]:
        """Returns the numbers of some buckets (None: all), ascending. Raises InvalidRequest for unknown numbers."""
        manifest = self.manifest
        chosen = tuple(sorted(manifest.buckets if numbers is None else numbers))
        for number in chosen:
            if number not in manifest.buckets:
                raise InvalidRequest(
                    f"table {table_of(self.table)} has no bucket {number}: it has 0 to "
                    f"{manifest.definition.buckets - 1}",
                    bucket=number,
                )
        if len(set(chosen)) != len(chosen):
            raise InvalidRequest("a bucket is named twice: name each once")
        return chosen

    async def open_buckets(self, numbers: Sequence[int] | None) -> SnapshotReader:
        """Opens some buckets (None: all) for a user of the view. They stay open until `close`.

        Raises:
            InvalidRequest: A bucket does not exist.
            DataLoss: One of them, or the manifest, is damaged.
            ScanKvError: Why the view has ended.
        """
        chosen = self.select_buckets(numbers)
        async with self._opening:
            # One after another, because opening one holds the interpreter lock for about 8 ms.
            for number in chosen:
                self.check()
                if number not in self._open:
                    await self._open_one(number)
        return SnapshotReader(self, chosen)

    async def _open_one(self, number: int) -> None:
        def work() -> None:
            place = self._place_of(number)
            check_files_left(place)
            self._open[number] = Checkpoint(
                self.directory.store(number),
                place,
                self.manifest.buckets[number],
                compression=self.manifest.definition.options.compression,
                resources=self._resources,
            )

        try:
            await self.executor.run(work)
        except ScanKvError as error:
            raise self.record_error(number, error) from error.__cause__

    async def open_bases(self, numbers: Iterable[int]) -> Mapping[int, BaseView]:
        """Opens the existing columnar bases of some buckets for a user of the view. They stay open until `close`.

        Skips a damaged base, because the checkpoint has the same rows. Raises why the view has ended.
        """
        async with self._opening:
            for number in numbers:
                self.check()
                if self.has_base(number) and number not in self._bases:
                    await self.executor.run(self._open_base, number)
            return dict(self._bases)

    def _open_base(self, number: int) -> None:
        pinned = self.manifest.buckets[number].base
        assert pinned is not None
        place = self._place_of(number)
        try:
            base, keys, rows = open_pinned_base(self.directory.base(number), pinned, place)
        except DataLoss as error:
            ended = self.reason_of_end()
            if ended is not None:
                raise ended from error
            _log.error("a columnar base is no longer read: %s", error.message)
            self._damaged_bases.add(number)
            return
        self._bases[number] = BaseView(base=base, delta=DeltaView.of(MergedDelta(keys, rows)), location=place)

    def has_base(self, number: int) -> bool:
        """Whether a bucket has a columnar base that is not known to be damaged."""
        return self.manifest.buckets[number].base is not None and number not in self._damaged_bases

    def mark_base_damaged(self, number: int, error: DataLoss) -> ScanKvError:
        """Stops reading a damaged base. Returns the error to raise; why the view has ended, if it has."""
        ended = self.reason_of_end()
        if ended is not None:
            return ended
        _log.error("a columnar base is no longer read: %s", error.message)
        self._damaged_bases.add(number)
        self._bases.pop(number, None)
        message = f"{error.message}; no row is lost: scan again, and the rows are read from the snapshot's checkpoint"
        return DataLoss(message, table=self.table, bucket=number, view=self.view_id)

    def _place_of(self, number: int) -> str:
        return f"bucket {number} of {self.table} in snapshot view {self.view_id}"

    def checkpoint(self, number: int) -> Checkpoint:
        """Returns the checkpoint of an open bucket."""
        self.check()
        return self._open[number]

    def check(self) -> None:
        """Raises the reason that `end` was given, if the view has ended."""
        if self._gone is not None:
            raise copy(self._gone)

    def reason_of_end(self) -> ScanKvError | None:
        """Returns why the view has ended, or None while it exists. Call it before you take a failed read for damage.

        The directory may be gone before `end` is called: another worker process may drop the table of a tablet.
        """
        if self._gone is not None:
            return copy(self._gone)
        return None if self.directory.exists() else self.directory.gone_error()

    def record_error(self, bucket: int, error: ScanKvError) -> ScanKvError:
        """Returns the error with table and bucket in its details. Logs damage.

        Files that cannot be read because the view has ended are no damage: then it returns the reason of the end.
        """
        ended = self.reason_of_end() if isinstance(error, DataLoss) else None
        if ended is not None:
            return ended
        error.details.setdefault("table", self.table)
        error.details.setdefault("bucket", str(bucket))
        error.details.setdefault("view", self.view_id)
        if isinstance(error, DataLoss):
            _log.error("DATA_LOSS in %s: %s [%s]", self.directory.bucket(bucket), error.message, error.__cause__)
        return error

    def watch(self, reader: Abortable) -> None:
        """Aborts a reader when the view ends. Does not keep the reader alive."""
        self._readers.add(reader)

    @cached_property
    def codec(self) -> TableCodec:
        return TableCodec.of(self.manifest.definition)

    async def close(self) -> None:
        """Closes the files unless they are in use."""
        async with self._opening:
            if self.users == 0:
                await self._close_files()

    async def end(self, reason: ScanKvError) -> None:
        """Ends every scan of the view with `reason`, closes its files, and refuses to open them again."""
        self._gone = reason
        for reader in list(self._readers):
            reader.abort(reason)
        async with self._opening:
            await self._close_files()

    async def _close_files(self) -> None:
        checkpoints = list(self._open.values())
        self._open.clear()
        # A scan that still reads a base keeps its file mapped.
        self._bases.clear()
        if checkpoints:
            await self.executor.run(_close_all, checkpoints)


class SnapshotReader:
    """Open buckets of a view. Valid within the block of `Snapshots.reading`, where its cursors must be closed.

    Attributes:
        definition: The table as of the pin.
        codec: Decodes the rows of all its schemas.
        keys: Encodes its keys.
        view_id: The view.
        view_micros: When it was taken, in microseconds since 1970 UTC.
        log_offsets: For each of these buckets, the offset of the first change that is not in the view.
        rows: For each of these buckets its rows, exact; None where they are not counted.
    """

    def __init__(self, view: PinnedView, numbers: Sequence[int]) -> None:
        manifest = view.manifest
        self.definition: TableDefinition = manifest.definition
        self.codec, self.keys = view.codec.rows, view.codec.key_codec
        self.view_id = view.view_id
        self.view_micros = manifest.view_micros
        self.log_offsets = {number: manifest.buckets[number].log_offset for number in numbers}
        self.rows = {number: manifest.buckets[number].rows for number in numbers}
        self._view = view

    def cursor(self, bucket: int, decoder: Decoder, key_range: KeyRange, *, reverse: bool = False) -> BucketCursor:
        """Returns a cursor over a key range of a bucket. Opens nothing. Raises DataLoss, or why the view has ended."""
        return self._view.checkpoint(bucket).cursor(self.codec, decoder, self.keys, key_range, reverse=reverse)

    def ranges_cursor(self, bucket: int, ranges: KeyRanges) -> RangesCursor:
        """Returns a cursor over some keys of a bucket. Opens nothing. Raises DataLoss, or why the view has ended."""
        return self._view.checkpoint(bucket).ranges_cursor(self.codec.decoder(()), ranges)

    def log_span(self, bucket: int) -> LogSpan:
        """Returns which changes the changelog of a bucket has. Raises why the view has ended."""
        return self._view.checkpoint(bucket).log.span

    def probe(self, bucket: int) -> KeyProbe:
        """Returns a probe of the keys of a bucket. Opens nothing. Raises DataLoss, or why the view has ended."""
        return self._view.checkpoint(bucket).probe()

    async def open_scan(self, plan: ReadPlan) -> OpenedScan:
        """Opens a scan of these buckets, which ends with the view. The caller closes its source.

        Raises:
            SchemaMismatch: A column does not exist, or a value of the predicate is not of its column's type.
            InvalidResumeToken: The token does not fit.
            DataLoss: A bucket is damaged.
        """
        plan = plan.as_of(self.view_micros)
        reader, choices = await plan_reads_off_loop(self._view.executor.run, plan, self._view.codec)
        lookup = await self._look_up(plan, reader, choices, keeps=True)
        if lookup is not None and lookup.is_chosen:
            reader = lookup.reader
        bases = await self._bases_for(plan, reader)
        opened = open_scan(
            plan,
            self.definition,
            reader,
            self._scanned_view,
            self.view_id,
            self._view.checkpoint,
            partial(self.record_base_error, bases.keys()),
            bases,
        )
        self.watch(opened.source)
        return opened

    async def explain(self, plan: ReadPlan) -> ExplainScanResponse:
        """Returns what `open_scan` would read for a plan. Raises SchemaMismatch as it does."""
        plan = plan.as_of(self.view_micros)
        reader, choices = plan_reads(plan, self._view.codec)
        lookup = await self._look_up(plan, reader, choices, keeps=False)
        filled = self._nonempty_buckets()
        read_path = choose_read_path(plan, reader, filled, self._unusable_bases())
        partitions = {name for number in filled for name in self._view.checkpoint(number).partitions()}
        return explain(plan, self.definition, reader, self.log_offsets, lookup, read_path, partitions)

    async def _look_up(
        self, plan: ReadPlan, reader: RowReader, choices: Sequence[IndexChoice], *, keeps: bool
    ) -> IndexLookup | None:
        """Returns a lookup that has read the entries of an index, and may keep them. None: no index can be used."""
        if not choices:
            return None
        based = buckets_with_bases(plan, reader, self._nonempty_buckets(), self._unusable_bases())
        lookup = open_lookup(plan, reader, choices, self.locked_view(), based)
        if lookup is not None:
            self.watch(lookup)
            await lookup.read(keeps=keeps)
        return lookup

    def _unusable_bases(self) -> dict[int, str]:
        """Returns the nonempty buckets without a base, with the human-readable reason."""
        filled = self._nonempty_buckets()
        return {number: "it was pinned without one" for number in filled if not self._view.has_base(number)}

    async def _bases_for(self, plan: ReadPlan, reader: RowReader) -> Mapping[int, BaseView]:
        """Returns the bases to read, by bucket number. Raises InvalidRequest as `bases_for`."""
        wanted = self._nonempty_buckets() if consider_bases(plan, reader).base else []
        views = await self._view.open_bases(wanted)
        return bases_for(plan, reader, self._nonempty_buckets(), views.get, _WHY_NONE)

    def _nonempty_buckets(self) -> list[int]:
        """Returns the buckets that may have rows."""
        return [number for number, rows in self.rows.items() if rows != 0]

    def record_base_error(self, bases: Collection[int], bucket: int, error: ScanKvError) -> ScanKvError:
        """Like `record_error`, where some buckets are read from their bases."""
        if bucket in bases and isinstance(error, DataLoss):
            return self._view.mark_base_damaged(bucket, error)
        return self.record_error(bucket, error)

    @property
    def _scanned_view(self) -> View:
        return View(self.log_offsets, self.view_micros, total_rows(self.rows.values()))

    def locked_view(self, check: Callable[[], None] = lambda: None) -> LockedView:
        """Returns a view of these buckets for reads through an index.

        Args:
            check: Raises if nothing more may be read. The end of the view is checked in any case.
        """

        def check_both() -> None:
            self.check()
            check()

        filled = {number: self._view.checkpoint(number) for number in self._nonempty_buckets()}
        ready = [checkpoint.ready_indexes for checkpoint in filled.values()]
        indexes = complete_indexes(self._view.codec.indexes.values(), ready)
        return LockedView(
            codec=self.codec,
            keys=self.keys,
            view=self._scanned_view,
            buckets=filled,
            indexes=indexes,
            on_error=self.record_error,
            check=check_both,
        )

    def record_error(self, bucket: int, error: ScanKvError) -> ScanKvError:
        """Returns an error of a cursor with its location in the details. Logs damage."""
        return self._view.record_error(bucket, error)

    def watch(self, source: Abortable) -> None:
        """Aborts `source` when the table is dropped or the server stops."""
        self._view.watch(source)

    def check(self) -> None:
        """Raises the reason if the view has ended: the table was dropped, or the server stops."""
        self._view.check()


def _close_all(checkpoints: Sequence[Checkpoint]) -> None:
    for checkpoint in checkpoints:
        try:
            checkpoint.close()
        except ScanKvError as error:
            _log.error("closing a checkpoint: %s [%s]", error.message, error.__cause__)
