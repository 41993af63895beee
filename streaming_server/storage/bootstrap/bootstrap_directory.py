"""The directory of a bootstrap, which outlives the process that makes it.

bootstraps/<id>/bootstrap.json     what the client has asked for
bootstraps/<id>/staged             the staged rows
bootstraps/<id>/commit.json        the parts whose rows the table gets; missing: the commit has not begun
bootstraps/<id>/built/0003.json    bucket 3 is complete
bootstraps/<id>/table              the directory of the table, until the commit moves it to its place
"""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING, Any, Final

from scankv.model.errors import DataLoss
from streaming_server.storage.files.checked_json import (
    find_checked_json,
    read_checked_json,
    sync_directory,
    to_checked_bytes,
    write_checked_json,
)
from streaming_server.storage.files.disk_space import translate_disk_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TERMS: Final = "bootstrap.json"
_COMMIT: Final = "commit.json"

_log: Final = logging.getLogger(__name__)


class BootstrapDirectory:
    """The directory of one bootstrap. Its methods block. It appears and disappears at one instant, also in a crash.

    Args:
        path: The directory.
        draft: Where it is made and removed. What a crash leaves there is removed at the next start.

    Attributes:
        staged: The file of the staged rows.
        table: The directory of the table.
    """

    def __init__(self, path: Path, draft: Path) -> None:
        self._path = path
        self._draft = draft
        self.staged = self._path / "staged"
        self.table = self._path / "table"

    def create(self, terms: dict[str, Any]) -> None:
        """Creates the directory, durably. Raises DiskFull and DiskFailed, and leaves nothing then."""
        bootstraps = self._path.parent
        with translate_disk_errors(bootstraps.parent):
            try:
                (self._draft / "table" / "buckets").mkdir(parents=True)
                (self._draft / "built").mkdir()
                (self._draft / self.staged.name).touch(0o600)
                write_checked_json(self._draft / _TERMS, terms)
                if not bootstraps.exists():
                    bootstraps.mkdir(mode=0o700, exist_ok=True)
                    sync_directory(bootstraps.parent)
                self._draft.rename(self._path)
                sync_directory(bootstraps)
            except BaseException:
                shutil.rmtree(self._draft, ignore_errors=True)
                raise

    def write_commit(self, commit: dict[str, Any]) -> None:
        """Records that the commit has begun, durably."""
        write_checked_json(self._path / _COMMIT, commit)

    def read_commit(self) -> dict[str, Any] | None:
        """Returns what `write_commit` has recorded. None: the commit has not begun. Raises DataLoss."""
        return find_checked_json(self._path / _COMMIT)

    def mark_built(self, bucket: int, counts: dict[str, int]) -> None:
        """Records that a bucket is complete and durable. After a crash, the mark may be missing."""
        mark = self._path / "built" / f"{bucket:04}.json"
        partial = mark.with_suffix(".partial")
        partial.write_bytes(to_checked_bytes(counts))
        partial.replace(mark)

    def find_built(self, bucket: int) -> dict[str, int] | None:
        """Returns what `mark_built` has recorded of a bucket. None: it may be incomplete."""
        try:
            return read_checked_json(self._path / "built" / f"{bucket:04}.json")
        except DataLoss:
            return None

    def remove_rows(self) -> None:
        """Removes everything but what the client has asked for. Call it once the table is in its place."""
        self.staged.unlink(missing_ok=True)
        for directory in ("table", "built"):
            shutil.rmtree(self._path / directory, ignore_errors=True)

    def remove(self) -> None:
        """Removes the directory, even if the disk is full. Idempotent."""
        if self._path.exists():
            self._path.rename(self._draft)
        shutil.rmtree(self._draft, ignore_errors=True)


def find_bootstraps(bootstraps: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the id of each bootstrap below a directory, with its terms. Logs those whose terms cannot be read."""
    for path in sorted(bootstraps.glob("*")):
        try:
            # Another worker process may remove it now.
            if (terms := find_checked_json(path / _TERMS)) is not None:
                yield path.name, terms
        except DataLoss as error:
            _log.error("a bootstrap is left out: %s", error.message)
