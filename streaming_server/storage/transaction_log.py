"""The transaction log: which transactions were decided, which of them are done, and what their commits answered.

`<data>/transactions/log-<generation>`, an append-only file of records. The last ones may be torn by a crash, unless
they were durable: how far that is stands beside it, in `log-<generation>.durable`. It is rewritten, as the next
generation, by a file that is made whole and durable before it gets its name.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from streaming_server.storage.checked_json import sync_directory
from streaming_server.storage.durable_mark import DurableMark
from streaming_server.storage.frames import frame_of, read_frames, write_at
from table_model.errors import DataLoss

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_PREFIX: Final = "log-"


class TransactionLog:
    """The log of one data directory. Not thread-safe.

    Attributes:
        records: What it had when it was opened, in order.
        size: Its bytes.
        is_uncertain: Whether a sync has failed, so that a restart alone can tell whether the last record is there.

    Args:
        directory: Where it lies; made when it is not there.

    Raises:
        DataLoss: Records that were durable are missing or damaged: whether transactions were committed cannot be told.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(exist_ok=True)
        generations = sorted(int(path.name[len(_PREFIX) :]) for path in directory.glob(f"{_PREFIX}*[0-9]"))
        self._generation = generations[-1] if generations else 0
        self.records: list[dict[str, Any]] = []
        self.size = 0
        self.is_uncertain = False
        for head, _, end in read_frames(self._path):
            self.records.append(head)
            self.size = end
        self._mark = DurableMark(self._path.with_suffix(".durable"))
        durable = self._mark.read()
        if durable is None or self.size < durable:
            self._mark.close()
            raise DataLoss(
                f"the transaction log {self._path} is damaged: of {durable} bytes that were durable, {self.size} can "
                "be read; restore it from a copy"
            )
        for path in directory.glob("log*"):
            if path.stem != self._path.name:
                path.unlink()  # what a crash has left of another generation

    @property
    def _path(self) -> Path:
        return self._path_of(self._generation)

    def _path_of(self, generation: int) -> Path:
        return self._directory / f"{_PREFIX}{generation}"

    def append(self, record: dict[str, Any], *, sync: bool) -> None:
        """Adds a record; with `sync`, it and all before it are durable when this returns. Blocks.

        Raises:
            OSError: It was not added; but see `is_uncertain`.
        """
        if self.is_uncertain:
            raise OSError("the transaction log could not be synced earlier")
        data, new = frame_of(record), self.size == 0
        write_at(self._path, data, self.size, sync=False)
        if sync:
            try:
                write_at(self._path, b"", 0, sync=True)
                if new:
                    sync_directory(self._directory)
            except BaseException:
                self.is_uncertain = True
                raise
        self.size += len(data)
        if sync:
            self._mark.write(self.size)

    def rewrite(self, records: Iterable[dict[str, Any]]) -> None:
        """Replaces what the log has by these records, durably. Blocks."""
        data, partial = b"".join(map(frame_of, records)), self._directory / "log.partial"
        partial.unlink(missing_ok=True)
        write_at(partial, data, 0, sync=True)
        before, self._generation = self._generation, self._generation + 1
        mark = DurableMark(self._path.with_suffix(".durable"))
        partial.rename(self._path)
        sync_directory(self._directory)
        mark.write(len(data))
        self._mark.close()
        self._mark, self.size = mark, len(data)
        self._remove(before)

    def _remove(self, generation: int) -> None:
        path = self._path_of(generation)
        path.unlink(missing_ok=True)
        path.with_suffix(".durable").unlink(missing_ok=True)

    def close(self) -> None:
        """Makes it durable and closes it."""
        if self.size:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        self._mark.close()
