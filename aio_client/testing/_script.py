"""The messages of one scripted answer, made from a test's script, without a connection."""

from __future__ import annotations

import copy
import enum
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import google_crc32c
import pyarrow as pa

from scankv.model.changes.chunk_checksum import chunk_crc32c
from scankv.model.counts import counted
from scankv.model.errors import InvalidRequest, ScanKvError, UsageError, did_you_mean
from scankv.v1 import scan_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scankv.v1.scan_pb2 import ScanKvRequest, ScanKvResponse


class Step(enum.Enum):
    """What a scripted answer can do besides sending rows and failing."""

    HEADER = "header"
    """Sends the header now, even if no rows follow."""
    HEARTBEAT = "heartbeat"
    """Sends a heartbeat: rows were read, and none matched."""
    STALL = "stall"
    """Sends nothing more, until the reader's timeout or the end of the scan."""
    END_WITHOUT_TRAILER = "end without trailer"
    """Ends the stream as if everything had been sent."""
    WRONG_TOTALS = "wrong totals"
    """Sends a trailer that counts one row too many."""
    WRONG_CHECKSUM = "wrong checksum"
    """Sends a trailer with another checksum."""


Script: TypeAlias = Sequence[pa.RecordBatch | ScanKvError | Step]
"""One answer; see `ScriptedServer`."""

_LAST: Final = (Step.STALL, Step.END_WITHOUT_TRAILER, Step.WRONG_TOTALS, Step.WRONG_CHECKSUM)


def check_script(script: Iterable[object], schema: pa.Schema) -> Script:
    """Returns the script if it can be played.

    Raises:
        UsageError: A step is not of a known kind, has other columns or no rows, or comes after the end.
    """
    steps: list[pa.RecordBatch | ScanKvError | Step] = []
    for step in script:
        if steps and (isinstance(steps[-1], ScanKvError) or steps[-1] in _LAST):
            raise UsageError(f"nothing can follow {steps[-1]!r} in a script, because it ends the answer")
        if isinstance(step, pa.RecordBatch):
            if not step.schema.equals(schema) or not step.num_rows:
                raise UsageError(
                    f"a batch of a script must have rows of {schema}, "
                    f"not {counted(step.num_rows, 'row')} of {step.schema}"
                )
        elif not isinstance(step, ScanKvError | Step):
            raise UsageError(f"a script must consist of record batches, ScanKvErrors and Steps, not {step!r}")
        steps.append(step)
    return tuple(steps)


class ScriptedAnswer:
    """Plays one script as the answer to one request."""

    def __init__(self, script: Script, schema: pa.Schema, request: ScanKvRequest, attempt: int) -> None:
        """Prepares the answer.

        Args:
            script: The script.
            schema: The columns of the table.
            request: The client's request.
            attempt: The attempt's number, which makes tokens, ids and views of the live table differ between attempts.
        """
        self._script = script
        self._schema = schema
        self._request = request
        self._attempt = attempt
        self._tokens = 0
        self._rows = self._bytes = self._chunks = self._crc32c = 0

    def play(self) -> Iterator[ScanKvResponse | Step]:
        """Yields the messages in order; `Step.STALL` where none ever comes.

        Raises:
            ScanKvError: The error in the script.
        """
        begun = False
        for step in self._script:
            if not begun and step is not Step.STALL and not isinstance(step, ScanKvError):
                begun = True
                yield self._header()
            if isinstance(step, ScanKvError):
                raise copy.copy(step)  # The client adds notes to the error.
            if isinstance(step, pa.RecordBatch):
                yield self._chunk(step)
            elif step is Step.HEARTBEAT:
                token = self._token()
                yield scan_pb2.ScanKvResponse(
                    heartbeat=scan_pb2.ScanHeartbeat(resume_token=token, rows_scanned=self._rows)
                )
            elif step is Step.STALL:
                yield step
            elif step is Step.END_WITHOUT_TRAILER:
                return
        if not begun:
            yield self._header()
        yield self._trailer()

    @property
    def _buckets(self) -> list[int]:
        return sorted(self._request.buckets) or [0]

    @property
    def _names(self) -> list[str]:
        columns = self._request.columns.names if self._request.HasField("columns") else self._schema.names
        for name in columns:
            if name not in self._schema.names:
                raise InvalidRequest(
                    f'there is no column "{name}"{did_you_mean(name, self._schema.names)}', column=name
                )
        return list(columns)

    def _header(self) -> ScanKvResponse:
        schema = pa.schema([self._schema.field(name) for name in self._names])
        # A pinned view stays the same. Over the live table, every attempt has a later view.
        view = 0 if self._request.HasField("snapshot") else self._attempt
        now = time.time_ns() // 1000
        before = scan_pb2.ResumedView(log_offsets=dict.fromkeys(self._buckets, max(view - 1, 0)), view_micros=now)
        return scan_pb2.ScanKvResponse(
            header=scan_pb2.ScanHeader(
                scan_id=f"scripted-scan-{self._attempt}",
                server_incarnation="scripted-server",
                arrow_schema=schema.remove_metadata().serialize().to_pybytes(),
                schema_id=1,
                log_offsets=dict.fromkeys(self._buckets, view),
                table_incarnation="scripted-table",
                view_micros=now,
                resumed_from=before if self._request.resume_token else None,
            )
        )

    def _chunk(self, batch: pa.RecordBatch) -> ScanKvResponse:
        data = batch.select(self._names).serialize().to_pybytes()
        self._rows += batch.num_rows
        self._bytes += len(data)
        self._chunks += 1
        self._crc32c = chunk_crc32c(self._crc32c, google_crc32c.value(data))
        return scan_pb2.ScanKvResponse(
            chunk=scan_pb2.ScanChunk(
                bucket=self._buckets[0],
                record_batch=data,
                row_count=batch.num_rows,
                resume_token=self._token(),
                rows_scanned=self._rows,
                crc32c=self._crc32c,
            )
        )

    def _trailer(self) -> ScanKvResponse:
        last = self._script[-1] if self._script else None
        return scan_pb2.ScanKvResponse(
            trailer=scan_pb2.ScanTrailer(
                rows_scanned=self._rows,
                rows_returned=self._rows + (last is Step.WRONG_TOTALS),
                bytes_returned=self._bytes,
                chunks=self._chunks,
                buckets=self._buckets,
                crc32c=self._crc32c ^ (last is Step.WRONG_CHECKSUM),
            )
        )

    def _token(self) -> bytes:
        self._tokens += 1
        return f"scripted-token-{self._attempt}-{self._tokens}".encode()
