"""The transaction log: an append-only file of records.

`<data>/transactions/log-<generation>` has the records. A crash may tear the last ones, unless they were durable; the
durable watermark in `log-<generation>.durable` says which ones were. A rewrite creates the next generation as a
complete and durable file before the file gets its name.
"""

from __future__ import annotations

import logging
from copy import copy
from typing import TYPE_CHECKING, Any, Final

from scankv.model.errors import DataLoss, DiskFailed, DiskFull, ScanKvError, ServerBusy, Unavailable
from streaming_server.storage.files.checked_json import sync_directory
from streaming_server.storage.files.disk_space import disk_full, translate_disk_errors
from streaming_server.storage.files.durable_watermark import DurableWatermark
from streaming_server.storage.files.frames import encode_frame, read_frames, write_at

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_PREFIX: Final = "log-"
_AGAIN_SECONDS: Final = 5.0

_log: Final = logging.getLogger(__name__)


class TransactionLog:
    """The log of one data directory. Not thread-safe.

    Attributes:
        records: The records when the log was opened, in order.
        size: Bytes of the log.
        is_uncertain: Whether a sync has failed, so that it is unknown whether the log has the last record, until
            `rewrite`.

    Args:
        directory: The directory of the log, which is created when it is missing.

    Raises:
        NewerFormat: A newer ScanKV has written the log.
        DataLoss: Durable records are missing or damaged, so whether transactions were committed is unknown.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with translate_disk_errors(directory):
            directory.mkdir(exist_ok=True)
        generations = sorted(int(path.name[len(_PREFIX) :]) for path in directory.glob(f"{_PREFIX}*[0-9]"))
        self._generation = self._newest = generations[-1] if generations else 0
        self._cause: Exception | None = None
        self.records: list[dict[str, Any]] = []
        self.size = 0
        self.is_uncertain = False
        try:
            for head, _, end in read_frames(self._path):
                self.records.append(head)
                self.size = end
        except (OSError, ValueError) as error:
            raise DataLoss(f"the transaction log {self._path} cannot be read: {error}") from error
        # Records that a crashed process has written may not be durable.
        self._synced = 0
        self._watermark = DurableWatermark(self._path.with_suffix(".durable"))
        try:
            durable = self._watermark.read()
        except BaseException:
            self._watermark.close()
            raise
        if durable is None or self.size < durable:
            self._watermark.close()
            raise DataLoss(
                f"the transaction log {self._path} is damaged: {self.size:,} of {_text(durable)} durable bytes can be "
                "read; restore it from a copy"
            )
        for path in directory.glob("log*"):
            if path.stem != self._path.name:
                _remove(path)  # a crash has left this file of another generation

    @property
    def _path(self) -> Path:
        return self._path_of(self._generation)

    def _path_of(self, generation: int) -> Path:
        return self._directory / f"{_PREFIX}{generation}"

    def append(self, record: dict[str, Any], *, sync: bool) -> None:
        """Appends a record. With `sync`, all records are durable when this returns. Blocks.

        Raises:
            DiskFull, DiskFailed, OSError: The record was not appended; but see `is_uncertain`.
            Unavailable: An earlier sync has failed.
        """
        if self.is_uncertain:
            if isinstance(self._cause, DiskFull):
                raise disk_full(self._directory)
            if isinstance(self._cause, DiskFailed):
                raise copy(self._cause)
            raise Unavailable(
                f"the transaction log {self._path} could not be synced, so no transaction can commit: the server "
                "rewrites it every few seconds; the log of the server has the reason",
                retry_after=_AGAIN_SECONDS,
            )
        data, before = encode_frame(record), self.size
        write_at(self._path, data, before, sync=False)
        self.size += len(data)
        if sync:
            try:
                self.sync()
            except BaseException:
                self.size = before
                raise

    def sync(self) -> None:
        """Makes all records durable. Blocks.

        Raises:
            DiskFull, OSError: Whether they are durable is unknown: see `is_uncertain`.
        """
        try:
            write_at(self._path, b"", 0, sync=True)
            if self._synced == 0:
                sync_directory(self._directory)
        except BaseException as error:
            self._doubt(error)
            raise
        self._synced = self.size
        self._write_watermark()

    def _doubt(self, error: BaseException) -> None:
        self.is_uncertain = True
        self._cause = copy(error) if isinstance(error, ScanKvError) else None

    @property
    def is_synced(self) -> bool:
        """Whether all records are durable."""
        return self._synced == self.size

    def _write_watermark(self) -> None:
        try:
            self._watermark.write(self.size)
        except (DiskFull, DiskFailed, ServerBusy, OSError) as error:
            # The records are durable nevertheless. A watermark that is too low only detects less damage.
            _log.warning("the durable watermark of %s cannot be written: %s", self._path, error)

    def rewrite(self, records: Iterable[dict[str, Any]]) -> None:
        """Replaces all records durably, even if the log was uncertain. Blocks.

        Raises:
            DiskFull, OSError: The log is unchanged; but see `is_uncertain`.
        """
        data, partial = b"".join(map(encode_frame, records)), self._directory / "log.partial"
        # A failed attempt may have left a file of its generation, durably or not, so each attempt takes the next one.
        generation = self._newest + 1
        watermark_path = self._path_of(generation).with_suffix(".durable")
        _remove(partial)
        try:
            write_at(partial, data, 0, sync=True)
            watermark = DurableWatermark(watermark_path)
        except BaseException:
            _remove(partial)
            _remove(watermark_path)
            raise
        self._newest = generation
        try:
            partial.rename(self._path_of(generation))
            sync_directory(self._directory)
        except BaseException as error:
            # Which generation a restart would find is unknown; records appended to the other one would be lost.
            self._doubt(error)
            watermark.close()
            raise
        before, self._generation = self._generation, generation
        self.is_uncertain, self._cause = False, None
        self._watermark.close()
        self._watermark, self.size, self._synced = watermark, len(data), len(data)
        for each in range(before, generation):
            _remove(self._path_of(each))
            _remove(self._path_of(each).with_suffix(".durable"))
        self._write_watermark()

    def close(self) -> None:
        """Closes the log, and makes it durable if possible. Records that must be durable already are."""
        if not self.is_synced:
            try:
                write_at(self._path, b"", 0, sync=True)
            except (DiskFull, DiskFailed, ServerBusy, OSError) as error:
                _log.warning("the transaction log %s cannot be synced: %s", self._path, error)
        self._watermark.close()


class UnreadableLog:
    """Replaces a transaction log that cannot be read: it has no records and takes none.

    Args:
        error: Why the log cannot be read. Every attempt to write raises it.
    """

    def __init__(self, error: ScanKvError) -> None:
        self.records: list[dict[str, Any]] = []
        self.size = 0
        self.is_uncertain = False
        self.is_synced = True
        self._error = error

    def append(self, record: dict[str, Any], *, sync: bool) -> None:
        """Raises the error."""
        raise copy(self._error)

    def sync(self) -> None:
        """Raises the error."""
        raise copy(self._error)

    def rewrite(self, records: Iterable[dict[str, Any]]) -> None:
        """Raises the error."""
        raise copy(self._error)

    def close(self) -> None:
        """Does nothing."""


def _remove(path: Path) -> None:
    """Removes a file that is no longer needed. If that fails, the next start removes it."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("%s cannot be removed: %s", path, error)


def _text(size: int | None) -> str:
    return "an unknown number of" if size is None else f"{size:,}"
