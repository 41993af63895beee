"""The rows of a scan for code that blocks; part of `aio_client.sync`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Literal, Self

from aio_client._runner import Runner
from table_model.errors import ScanKvError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from types import TracebackType

    import pyarrow as pa

    from aio_client._config import ClientConfig
    from aio_client._resume import Resumption
    from aio_client._stream import ScanStatistics
    from aio_client._stream import ScanStream as AsyncScanStream
    from table_model.log_offsets import LogOffsets
    from table_model.scan_spec import ScanSpec


class ScanStream:
    """The rows of one scan as Arrow batches. One reader at a time, in any thread. See `aio_client.ScanStream`."""

    def __init__(self, runner: Runner, stream: AsyncScanStream, *, closes_runner: bool = False) -> None:
        """Called by `Scan.stream`; starts nothing.

        Args:
            runner: Where the stream runs.
            stream: The asynchronous stream.
            closes_runner: Whether the runner is this stream's alone, and ends with it.
        """
        self._runner = runner
        self._stream = stream
        self._closes_runner = closes_runner
        self._interrupted: UsageError | None = None

    def __enter__(self) -> Self:
        """Starts the scan and reads its header, so that `schema` and `log_offsets` are known."""
        self._runner.call(self._stream.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        """The next rows; raises as `aio_client.ScanStream.__anext__`, and StopIteration at the end.

        An interrupt such as Ctrl-C ends the scan; `resume_token` is that of the rows before.
        """
        if self._interrupted is not None:
            raise self._interrupted
        token = self._stream.resume_token
        try:
            rows = self._runner.call(_next, self._stream)
        except ScanKvError:
            raise
        except BaseException:
            self._interrupt(token)
            raise
        if rows is None:
            if self._closes_runner:
                self._runner.close()
            raise StopIteration
        return rows

    def _interrupt(self, token: bytes | None) -> None:
        """Ends the scan for good: rows that came at that moment are lost, and nothing may go on behind them."""
        self._interrupted = UsageError(
            "a read of the scan was interrupted, which ended it; start it again, or go on with its resume_token"
        )
        self._interrupted.resume_token = token
        with suppress(ScanKvError):
            self.close()

    def commit(self) -> LogOffsets:
        """Commits what was returned so far on behalf of the stream's consumer. See `aio_client.ScanStream.commit`."""
        if self._interrupted is not None:
            raise self._interrupted
        return self._runner.call(self._stream.commit)

    def close(self) -> None:
        """Ends the scan, so that the server frees its iterators. Idempotent, also after the end."""
        if self._closes_runner:
            self._runner.close()
        else:
            self._runner.call(self._stream.aclose)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows, known once the scan has started."""
        return self._stream.schema

    @property
    def log_offsets(self) -> LogOffsets:
        """For every bucket of the scan, the offset of the first change that the rows do not show."""
        return self._stream.log_offsets

    @property
    def scan_id(self) -> str:
        """The name of this scan in the server's logs and listings."""
        return self._stream.scan_id

    @property
    def incarnation(self) -> str:
        """Of the server that answered last; differs after every start of a server."""
        return self._stream.incarnation

    @property
    def table_incarnation(self) -> str:
        """Of the table that is read; differs for every creation of a table, also of the same name."""
        return self._stream.table_incarnation

    @property
    def bucket(self) -> int | None:
        """The bucket of the rows that were returned last. See `aio_client.ScanStream.bucket`."""
        return self._stream.bucket

    @property
    def version(self) -> bytes:
        """Names what the rows are of. See `aio_client.ScanStream.version`."""
        return self._stream.version

    @property
    def unchanged(self) -> bool:
        """Whether nothing has changed, so that there are no rows. See `aio_client.ScanStream.unchanged`."""
        return self._stream.unchanged

    @property
    def consistency(self) -> Literal["table", "pinned"]:
        """What the rows are one instant of. See `aio_client.ScanStream.consistency`."""
        return self._stream.consistency

    @property
    def resume_token(self) -> bytes | None:
        """What goes on behind the last batch that was returned. See `aio_client.ScanStream.resume_token`."""
        return (self._stream if self._interrupted is None else self._interrupted).resume_token

    @property
    def resumptions(self) -> tuple[Resumption, ...]:
        """Where the scan went on after a cut, or by `resume_from`."""
        return self._stream.resumptions

    @property
    def next_offsets(self) -> LogOffsets:
        """Of a scan of the changelog, for every bucket the offset behind what was returned."""
        return self._stream.next_offsets

    @property
    def phase(self) -> Literal["rows", "changes"]:
        """Whether rows of the table are still to come, or changes alone. See `aio_client.ScanStream.phase`."""
        return self._stream.phase

    @property
    def watermark(self) -> datetime | None:
        """Of a scan of the changelog: what was committed before this time was returned."""
        return self._stream.watermark

    def on_heartbeat(self, listener: Callable[[], None]) -> None:
        """Has a listener called whenever the stream was heard from without rows, in the client's thread."""
        self._stream.on_heartbeat(listener)

    def statistics(self) -> ScanStatistics:
        """What the scan has done so far; final when it has ended."""
        return self._stream.statistics()


async def _next(stream: AsyncScanStream) -> pa.RecordBatch | None:
    return await anext(stream, None)


def stream_once(config: ClientConfig, spec: ScanSpec) -> ScanStream:
    """One scan over a connection of its own, which ends with it."""
    runner = Runner(config)
    return ScanStream(runner, runner.client.scan(spec).stream(), closes_runner=True)
