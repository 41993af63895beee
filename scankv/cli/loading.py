"""Writes the rows of a file to a table, and reads the next rows while the previous ones are being written."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Timer
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from aio_client._sync.runner import wait_for
from scankv.formats.blocks import good_rows
from scankv.formats.files import BadFile
from scankv.model.counts import counted
from scankv.model.errors import InvalidRequest, PermissionDenied, RequestTooLarge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

    from aio_client._write.merging import WriteMode
    from aio_client.sync import Client, Table
    from scankv.formats.blocks import BadRows, Block, GoodRows


_SETTLE_SECONDS: Final = 5.0


class Loading:
    """Writes blocks of rows to a table in order, so that the last of several rows with the same key wins.

    Appends them to a table without a primary key.

    Attributes:
        rows: How many rows were acknowledged.
        unsure: How many further rows were sent but not answered, so that they may or may not be written.
    """

    def __init__(self, client: Client, table: Table, mode: WriteMode = "merge", *, track_changes: bool = True) -> None:
        self._track_changes = track_changes
        self.rows: int = 0
        self.unsure: int = 0
        self._mode: WriteMode = mode
        self._client = client
        self._table = table
        self._underway: _PendingWrite | None = None

    def run(self, blocks: Iterable[Block], bad: BadRows, on_progress: Callable[[], None]) -> None:
        """Writes all blocks of a file; returns when every row is acknowledged.

        Args:
            blocks: The rows.
            bad: Handles rows that cannot be loaded.
            on_progress: Called after every write.

        Raises:
            BadFile: A row cannot be loaded, and bad rows must not be skipped. The rows before it are written, and the
                message says how many.
            KeyboardInterrupt, SystemExit: The load was interrupted; `rows` and `unsure` have the state at its end.
        """
        # All writes run in this thread: signals interrupt the main thread only, so `rows` and `unsure` stay exact.
        with ThreadPoolExecutor(1, thread_name_prefix="scankv-load") as pool, self._finish_on_interrupt(pool):
            try:
                for block in blocks:
                    for good in good_rows(block, bad):
                        self._finish_underway(pool, bad)
                        on_progress()
                        self._underway = _PendingWrite(pool.submit(self._write, good.rows), good)
                self._finish_underway(pool, bad)
                on_progress()
            except BadFile as error:
                self._finish_underway(pool, bad)
                before = counted(self.rows, "row before it was", "rows before it were") if self.rows else "nothing was"
                raise BadFile(f"{error.message}; {before} loaded") from error

    def _write(self, rows: pa.RecordBatch) -> None:
        self.unsure = rows.num_rows
        try:
            if self._table.primary_key:
                written = self._table.upsert(rows, mode=self._mode, track_changes=self._track_changes).rows
            else:
                written = self._table.append(rows).rows
        except (InvalidRequest, RequestTooLarge, PermissionDenied):
            self.unsure = 0
            raise
        self.rows, self.unsure = self.rows + written, 0

    @contextmanager
    def _finish_on_interrupt(self, pool: ThreadPoolExecutor) -> Iterator[None]:
        """After an interrupt, waits briefly for the write in flight to be answered, and then closes the client.

        Leaving `pool` waits for that write. If the server is away, the client would repeat it for a minute.
        """
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            deadline = Timer(_SETTLE_SECONDS, self._client.close)
            try:
                deadline.start()
                pool.shutdown(cancel_futures=True)
            finally:
                # Runs even if a second interrupt has ended the wait.
                deadline.cancel()
                self._client.close()
            raise

    def _finish_underway(self, pool: ThreadPoolExecutor, bad: BadRows) -> None:
        """Waits for the write in flight. If the server refuses a row, repeats the write without that row."""
        if self._underway is None:
            return
        future, good = self._underway.future, self._underway.good
        self._underway = None
        kept = np.arange(good.rows.num_rows)
        while True:
            try:
                wait_for(future)
            except (InvalidRequest, RequestTooLarge) as error:
                if "row" not in error.details:
                    raise
                row = int(error.details["row"])
                refused = int(kept[row])
                bad.add(good.where(refused), error.message, partial(good.line, refused))
                kept = np.delete(kept, row)
                if not len(kept):
                    return
                future = pool.submit(self._write, good.rows.take(pa.array(kept)))
            else:
                return


@dataclass(frozen=True, slots=True)
class _PendingWrite:
    """Rows that are being written, and the future of the write."""

    future: Future[None]
    good: GoodRows
