"""A small server whose scans can be resumed, and whose calls end as scripted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc

from tests.unit.client.messages import LOG_OFFSETS, SCHEMA, chunks, header, heartbeat, response, trailer
from tests.unit.client.misbehaving import FOREVER, Context, OnlyScans, end_with

if TYPE_CHECKING:
    import pyarrow as pa

    from scankv.v1.scan_pb2 import ScanChunk, ScanKvRequest, ScanKvResponse

CHUNKS: Final = 6
ROWS_OF_A_CHUNK: Final = 5
ROWS: Final = CHUNKS * ROWS_OF_A_CHUNK


@dataclass(frozen=True)
class Ends:
    """How one call ends.

    Attributes:
        after: Messages that it sends before: its header, the chunks that are left, its trailer.
        code: The status that it ends with. OK: without a word.
        reason: The typed detail of the status.
        retry_after: Seconds, with a reason.
        schema: What its rows are said to be.
        stalls: Whether it says nothing more, in place of ending.
    """

    after: int
    code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    reason: str | None = None
    retry_after: float | None = None
    schema: pa.Schema = SCHEMA
    stalls: bool = False


class GoesOn(OnlyScans):
    """Answers every call from its token on, with a view that is one change newer each time unless it is pinned.

    Attributes:
        requests: The requests of all calls.
        ended: Calls that have ended, however that came.
        called: Set by each call.
    """

    def __init__(self, *script: Ends) -> None:
        self._script = list(script)
        self.requests: list[ScanKvRequest] = []
        self.ended = 0
        self.called = asyncio.Event()

    async def ScanKv(self, request: ScanKvRequest, context: Context) -> None:  # type: ignore[override]
        end = self._script.pop(0) if self._script else None
        self.requests.append(request)
        self.called.set()
        try:
            for message in self._messages(request, end)[: None if end is None else end.after]:
                await context.write(message)
            if end is not None and end.stalls:
                await asyncio.sleep(FOREVER)
            if end is not None and end.code is not grpc.StatusCode.OK:
                await end_with(context, end.code, end.reason, end.retry_after)
        finally:
            self.ended += 1

    def _messages(self, request: ScanKvRequest, end: Ends | None) -> list[ScanKvResponse]:
        sent = chunks(CHUNKS, ROWS_OF_A_CHUNK, first=_position(request))
        if request.HasField("limit"):
            sent = [each for each in sent if _last_key(each) < request.limit]
        first = header(
            SCHEMA if end is None else end.schema,
            log_offsets=self._view(request, len(self.requests)),
            resumed_from=self._view(request, len(self.requests) - 1) if request.resume_token else None,
        )
        if request.HasField("limit"):
            first.limit_left = max(request.limit - _position(request) * ROWS_OF_A_CHUNK, 0)
        return [response(first), *map(response, sent), response(trailer(sent))]

    def _view(self, request: ScanKvRequest, calls: int) -> dict[int, int]:
        return LOG_OFFSETS if request.HasField("snapshot") else {**LOG_OFFSETS, 0: calls}


class SendsOnlyHeartbeats(OnlyScans):
    """Finds no rows for some time: sends a heartbeat every tenth of a second, then the trailer."""

    def __init__(self, count: int) -> None:
        self._count = count

    async def ScanKv(self, request: ScanKvRequest, context: Context) -> None:  # type: ignore[override]
        await context.write(response(header()))
        for number in range(1, self._count + 1):
            await asyncio.sleep(0.1)
            await context.write(response(heartbeat(b"heartbeat %d" % number, 1000 * number)))
        await context.write(response(trailer([])))


def _position(request: ScanKvRequest) -> int:
    """Returns the number of the first chunk after the token, which contains the last key."""
    token = request.resume_token
    return (int(token.removeprefix(b"after ")) + 1) // ROWS_OF_A_CHUNK if token else 0


def _last_key(chunk: ScanChunk) -> int:
    return int(chunk.resume_token.removeprefix(b"after "))
