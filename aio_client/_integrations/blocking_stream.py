"""Lets an asynchronous scan open a blocking stream.

The blocking client imports the asynchronous one, never the reverse. This module therefore does not import the code that
opens blocking streams: the package registers it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa

    from aio_client._transport.config import ClientConfig
    from scankv.model.changes.log_offsets import LogOffsets
    from scankv.model.scans.scan_spec import ScanSpec


class BlockingStream(Protocol):
    """The rows of a scan as Arrow batches, for code that blocks. See `scankv.sync.ScanStream` for all members."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def __iter__(self) -> Self: ...

    def __next__(self) -> pa.RecordBatch: ...

    def poll(self, timeout: float) -> pa.RecordBatch | None:
        """Returns the next rows if they arrive within `timeout` seconds, else None."""

    def commit(self, token: bytes | None = None) -> LogOffsets:
        """Commits the position of the stream's consumer: all that was returned so far, or all up to a token."""

    def close(self) -> None:
        """Ends the scan."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""

    @property
    def resume_token(self) -> bytes | None:
        """The token that continues after the last batch that was returned."""

    @property
    def ended(self) -> bool:
        """Whether the stream is over."""


class StreamOpener(Protocol):
    """Opens a blocking stream."""

    def __call__(self, config: ClientConfig, spec: ScanSpec) -> BlockingStream:
        """Starts a scan over its own connection, which is closed with the stream."""


_openers: list[StreamOpener] = []


def register_opener(opener: StreamOpener) -> None:
    """Makes `open_blocking_stream` use this opener from now on."""
    _openers[:] = [opener]


def open_blocking_stream(config: ClientConfig, spec: ScanSpec) -> BlockingStream:
    """Starts a scan over its own connection, which is closed with the stream."""
    return _openers[0](config, spec)
