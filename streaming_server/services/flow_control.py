"""Flow control of a scan: at most one message is built while another one is being sent.

A write to gRPC ends when HTTP/2 flow control lets the message go. So a slow reader stops the iterators of its scan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from copy import copy
from typing import TYPE_CHECKING, Final, TypeAlias

from streaming_server.current_call import CURRENT_CALL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc

    from scankv.v1 import scan_pb2
    from streaming_server.scan.admission.live_scans import RegisteredScan

# How often a message that is held back looks whether its scan was ended.
_LOOK_SECONDS: Final = 0.2

Send: TypeAlias = Callable[[bytes], Awaitable[None]]


@asynccontextmanager
async def one_in_flight(
    context: grpc.aio.ServicerContext[scan_pb2.ScanKvRequest, bytes], scan: RegisteredScan
) -> AsyncIterator[Send]:
    """Yields a `send` that returns while its message is being sent, so that the next one is built concurrently.

    At most one message is in flight, and one more is built. The block ends only when the last message has been sent,
    even after an error: gRPC accepts one operation of a kind at a time, so a status sent during a write would be lost,
    and the call would hang. If the reader takes nothing, the call waits here, with these two messages in memory.
    """
    loop, call = asyncio.get_running_loop(), CURRENT_CALL.get()
    pace = None if call is None else call.stream_pace
    writes: list[asyncio.Task[None]] = []

    async def settle() -> None:
        began = loop.time()
        try:
            while writes:
                await writes.pop()
        finally:
            if call is not None:
                call.waited_seconds += loop.time() - began

    async def hold_back(seconds: float) -> None:
        began = now = loop.time()
        while scan.ended is None and now < began + seconds:
            await asyncio.sleep(min(began + seconds - now, _LOOK_SECONDS))
            now = loop.time()
        if call is not None:
            call.waited_seconds += now - began

    async def write(message: bytes) -> None:
        scan.sending_since = began = loop.time()
        scan.sending_bytes = len(message)
        await context.write(message)
        scan.sending_since, scan.progress_at = None, loop.time()
        scan.last_took = scan.progress_at - began

    async def send(message: bytes) -> None:
        scan.built_bytes = len(message)
        await settle()
        if pace is not None and (seconds := pace(len(message))):
            await hold_back(seconds)
        scan.built_bytes = 0
        if scan.ended is not None:
            raise copy(scan.ended)
        writes.append(asyncio.create_task(write(message)))
        # Let the write begin before building the next chunk holds the event loop.
        await asyncio.sleep(0)

    try:
        try:
            yield send
        except Exception:
            await settle()
            raise
        await settle()
    finally:
        for task in writes:
            task.cancel()
