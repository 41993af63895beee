"""A process that merges buckets of a bootstrap beside the server, which lends it no interpreter lock.

The two are connected by a pair of sockets. The server sends a `MergeJob`, and then the numbers of buckets. For each
bucket, the process sends the progress after each file, and at last what the files have, or the error.

Rule: the process ends with its server. So no file is written that a later process of the server does not know of.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from threading import Thread
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from scankv.model.errors import ScanKvError
from streaming_server.engine.bootstrap.bucket_merge import RANGE_BYTES, BucketMerge, MergedFiles, MergeRules
from streaming_server.engine.merging.merger import Merger
from streaming_server.storage.bootstrap.staged_runs import StagedRuns
from streaming_server.storage.files.disk_reserve import DiskReserve
from streaming_server.storage.files.disk_space import translate_disk_errors
from streaming_server.storage.rocks.store_options import RocksResources
from streaming_server.storage.rows.table_codec import TableCodec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.bootstrap.bucket_build import BucketBuild
    from streaming_server.storage.bootstrap.staged_runs import BootstrapRequest

_CACHE_BYTES: Final = 1 << 20


class MergeProcessEndedError(Exception):
    """The process has ended before it had merged a bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeJob:
    """What all buckets of a bootstrap have in common. Immutable, and sent to the process.

    Attributes:
        definition: The table.
        overwrite, merges_duplicates, micros: See `MergeRules`.
        requests: The requests whose rows count, in their order.
        staged: The file of the staged rows.
        buckets: The directory in which the files are made.
        reserve_bytes: The disk space that is left free.
    """

    definition: TableDefinition
    overwrite: bool
    merges_duplicates: bool
    micros: int
    requests: list[BootstrapRequest]
    staged: Path
    buckets: Path
    reserve_bytes: int


class MergeProcess:
    """The process, seen from the server. Its methods block."""

    def __init__(self) -> None:
        """Starts it. Raises OSError."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            fd = theirs.fileno()
            # -P: a directory that the server was started in must not provide the program.
            command = [sys.executable, "-P", "-m", __name__, str(fd)]
            self._process = subprocess.Popen(command, pass_fds=[fd], stdin=subprocess.DEVNULL)
            self._connection = Connection(ours.detach())

    def begin(self, job: MergeJob) -> None:
        """Sends the job, once. Raises MergeProcessEndedError."""
        self._send(job)

    def merge(self, build: BucketBuild) -> Iterator[None]:
        """Has a bucket merged, and gives it the files. Yields after each file.

        Raises:
            ScanKvError: As `BucketMerge.merge`.
            MergeProcessEndedError: The process has ended.
        """
        self._send(build.number)
        while True:
            try:
                answer = self._connection.recv()
            except (OSError, EOFError) as error:
                raise MergeProcessEndedError from error
            if isinstance(answer, ScanKvError):
                raise answer
            if isinstance(answer, MergedFiles):
                build.files = answer
                return
            build.files.merged_rows = answer
            yield

    def _send(self, message: object) -> None:
        try:
            self._connection.send(message)
        except OSError as error:
            raise MergeProcessEndedError from error

    def kill(self) -> None:
        """Ends the process, and with it any `merge`."""
        self._process.kill()
        self._process.wait()


def main(fd: int) -> None:
    """Merges buckets until the server closes the connection or ends."""
    # A terminal sends it to all processes; the server decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pa.set_memory_pool(pa.system_memory_pool())
    Thread(target=_end_with_server, args=[fd], daemon=True).start()
    with suppress(EOFError, ConnectionError):
        _serve(Connection(fd))


def _serve(connection: Connection) -> None:
    job: MergeJob = connection.recv()
    rules = MergeRules(
        merger=Merger.of(TableCodec.of(job.definition), {}),
        overwrite=job.overwrite,
        merges_duplicates=job.merges_duplicates,
        micros=job.micros,
    )
    runs = StagedRuns(job.staged, rules.merger.codec.schema, is_sealed=True)
    runs.seal()
    resources = RocksResources.of_sizes(block_cache_bytes=_CACHE_BYTES, write_buffer_bytes=_CACHE_BYTES)
    reserve = DiskReserve(job.buckets, job.reserve_bytes)
    while True:
        number: int = connection.recv()
        merge = BucketMerge(number, job.buckets / f"{number:04}", rules, resources)
        try:
            with translate_disk_errors(job.buckets):
                reserve.check_file(RANGE_BYTES)
                for _ in merge.merge(runs, job.requests):
                    connection.send(merge.files.merged_rows)
                    reserve.check_file(RANGE_BYTES)
            connection.send(merge.files)
        except ScanKvError as error:
            connection.send(error)


def _end_with_server(fd: int) -> None:
    hung_up = select.poll()
    hung_up.register(fd, 0)
    hung_up.poll()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
