"""The write-ahead logs of dropped tables, kept until they are archived."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, Final

from streaming_server.storage.rocks.store_files import families_of
from streaming_server.storage.rocks.write_ahead_log import find_log_files, open_log_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streaming_server.engine.backups.archived_so_far import Place

_FAMILIES: Final = "families"


class KeptLogs:
    """Links to the write-ahead logs of tables that are dropped. All methods block.

    Args:
        trash: The trash of the data directory, where the links are.
    """

    def __init__(self, trash: Path) -> None:
        self._trash = trash

    def keep(self, table: Path, incarnation: str) -> None:
        """Keeps the logs of a table that is about to be removed, and of its tablets. All are closed."""
        in_tablets = table.glob("tablets/*/buckets/[0-9]*[0-9]")
        for bucket in (*(table / "buckets").glob("[0-9]*[0-9]"), *in_tablets):
            if bucket.is_dir():
                target = self._path(incarnation) / bucket.name
                target.mkdir(parents=True, exist_ok=True)
                for file in find_log_files(bucket):
                    with suppress(FileNotFoundError):
                        os.link(file.path, target / file.path.name)
                (target / _FAMILIES).write_text("\n".join(families_of(bucket)))

    def buckets(self, incarnation: str) -> Iterator[tuple[Place, Path, tuple[str, ...]]]:
        """Yields each bucket of a table whose logs are kept: the directory of its logs, and its column families."""
        for bucket in sorted(self._path(incarnation).glob("[0-9]*")):
            yield (incarnation, int(bucket.name)), bucket, tuple((bucket / _FAMILIES).read_text().split())

    def open(self, place: Place, number: int) -> BinaryIO:
        """Opens a file of a log to be read. Raises FileNotFoundError."""
        return open_log_file(self._path(place[0]) / f"{place[1]:04}", number)

    def remove(self, incarnation: str) -> None:
        """Removes the logs of a table."""
        shutil.rmtree(self._path(incarnation), ignore_errors=True)

    def _path(self, incarnation: str) -> Path:
        return self._trash / f"archive-{incarnation}"
