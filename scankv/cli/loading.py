"""Rows of a file on their way into a table: the next are read while the last are written."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from scankv.formats.blocks import good_rows
from scankv.formats.files import BadFile
from scankv.model.errors import InvalidRequest, RequestTooLarge, ScanKvError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from aio_client import WriteResult
    from aio_client._write.merging import WriteMode
    from aio_client.sync import Client, Table
    from scankv.formats.blocks import BadRows, Block, GoodRows


_SETTLE_SECONDS: Final = 5.0


class Loading:
    """Writes blocks of rows to a table in their order, so that of several rows of one key the last one stays.

    Attributes:
        rows: How many rows were acknowledged.
        unsure: How many more may be written or not, after an interrupt; 0 where the server has answered in time.
    """

    def __init__(self, client: Client, table: Table, mode: WriteMode = "merge") -> None:
        self.rows: int = 0
        self.unsure: int = 0
        self._mode: WriteMode = mode
        self._client = client
        self._table = table
        self._underway: tuple[Future[WriteResult], GoodRows] | None = None

    def run(self, blocks: Iterable[Block], bad: BadRows, on_progress: Callable[[], None]) -> None:
        """Writes all blocks of a file; returns when every row is acknowledged.

        Args:
            blocks: The rows.
            bad: Takes those that cannot be loaded.
            on_progress: Called after every write.

        Raises:
            BadFile: A row cannot be loaded, and bad rows are not to be passed over. The rows before it are written,
                and the message says how many.
            KeyboardInterrupt, SystemExit: It was interrupted; `rows` and `unsure` say how far it has come.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="scankv-load") as pool:
            try:
                for block in blocks:
                    for good in good_rows(block, bad):
                        self._finish_underway(bad)
                        on_progress()
                        self._underway = pool.submit(self._table.upsert, good.rows, mode=self._mode), good
                self._finish_underway(bad)
                on_progress()
            except BadFile as error:
                self._finish_underway(bad)
                raise BadFile(f"{error.message}; {self.rows:,} rows before it were loaded") from error
            except (KeyboardInterrupt, SystemExit):
                self._settle()
                raise

    def _settle(self) -> None:
        """Gives the write that is underway a little time, so that `rows` is exact, and then ends it."""
        if self._underway is None:
            return
        write, good = self._underway
        self._underway = None
        try:
            self.rows += write.result(_SETTLE_SECONDS).rows
        except (ScanKvError, TimeoutError):
            self.unsure += good.rows.num_rows
        except KeyboardInterrupt:
            self.unsure += good.rows.num_rows
            raise
        finally:
            # Leaving the pool waits for that write, so it has to end.
            self._client.close()

    def _finish_underway(self, bad: BadRows) -> None:
        """Waits for the write that is underway; when the server refuses a row of it, that row is a bad one."""
        if self._underway is None:
            return
        write, good = self._underway
        try:
            written = write.result().rows
        except (InvalidRequest, RequestTooLarge) as error:
            self._underway = None
            self._write_without_refused(good, error, bad)
        else:
            # In one statement, which no signal divides: a Ctrl-C finds the write counted or still underway.
            self.rows, self._underway = self.rows + written, None

    def _write_without_refused(self, good: GoodRows, error: InvalidRequest | RequestTooLarge, bad: BadRows) -> None:
        """Writes again without the row that was refused, until none is."""
        kept = np.arange(good.rows.num_rows)
        while len(kept):
            if "row" not in error.details:
                raise error
            row = int(error.details["row"])
            bad.add(good.where(int(kept[row])), error.message)
            kept = np.delete(kept, row)
            try:
                self.rows += self._table.upsert(good.rows.take(pa.array(kept)), mode=self._mode).rows
            except (InvalidRequest, RequestTooLarge) as again:
                error = again
            except (KeyboardInterrupt, SystemExit):
                self.unsure += len(kept)
                raise
            else:
                return
