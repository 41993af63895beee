"""What every system of the comparison has."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, ClassVar, Final, Self

from benchmarks.field.process import disk_bytes
from benchmarks.proc import tree_bytes, tree_cpu_seconds
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.field.clients.field_client import FieldClient

MEBIBYTE: Final = 1 << 20


class Competitor:
    """One system: its server, if it has one, and its client, each in a process of its own.

    Entering starts both with an empty data directory, and does not wait for the client; exiting stops both.

    Args:
        directory: A directory that does not exist yet, in which the system keeps everything.
        rows: The number of rows of T4.
        buckets: The number of buckets of the table.
    """

    NAME: ClassVar[str]
    CLIENT: ClassVar[type[FieldClient]]
    DURABILITY: ClassVar[str]
    SETUP: ClassVar[str]
    HAS_BUCKETS: ClassVar[bool] = False

    def __init__(self, directory: Path, rows: int, buckets: int) -> None:
        self.directory = directory
        self.rows = rows
        self.buckets = buckets
        self._stack = ExitStack()
        self._server_ids: Sequence[int] = ()

    @classmethod
    def missing(cls) -> str | None:
        """Returns why the system cannot be measured here, or None if it can."""
        return None

    @classmethod
    def versions(cls) -> str:
        """Returns the versions of server and client."""
        raise NotImplementedError

    def start(self) -> tuple[str, Sequence[int]]:
        """Starts the server. Returns the address for the client, and the ids of the server's processes.

        `self.stack` stops at the end what this method enters.
        """
        raise NotImplementedError

    @property
    def stack(self) -> ExitStack:
        """Closes everything at the end."""
        return self._stack

    def __enter__(self) -> Self:
        self.directory.mkdir()
        with ExitStack() as undo:
            undo.push(self._stack)
            address, self._server_ids = self.start()
            self.client: Worker[FieldClient] = self._stack.enter_context(
                Worker(self.CLIENT, address, self.rows, self.buckets)
            )
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def cpu_seconds(self) -> tuple[float, float]:
        """Returns the processor time of the client and of the server so far."""
        return tree_cpu_seconds(self.client.pid), sum(map(tree_cpu_seconds, self._server_ids))

    def memory_mebibytes(self) -> tuple[float, float]:
        """Returns the resident memory of the client and of the server now."""
        return tree_bytes(self.client.pid) / MEBIBYTE, sum(map(tree_bytes, self._server_ids)) / MEBIBYTE

    def disk_mebibytes(self) -> float:
        """Returns what the data takes on disk, logs included."""
        return disk_bytes(self.directory) / MEBIBYTE
