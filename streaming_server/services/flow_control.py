"""Flow control of a scan: at most one message is built while another one is being sent.

gRPC returns from a write when HTTP/2 lets the message go, so a slow reader stops the iterators behind the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from copy import copy
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc

    from scankv.v1 import scan_pb2
    from streaming_server.scan.admission.live_scans import RegisteredScan

Send: TypeAlias = Callable[[bytes], Awaitable[None]]


@asynccontextmanager
async def one_in_flight(
    context: grpc.aio.ServicerContext[scan_pb2.ScanKvRequest, bytes], scan: RegisteredScan
) -> AsyncIterator[Send]:
    """Makes a `send` that returns while its message is being sent, so that the next one is built concurrently.

    One is built, one in flight, never more. The block ends, also with an error, when the last message has been sent:
    gRPC takes one operation of a kind at a time, so a status sent beside a message would be lost, and the call hang.
    A reader that takes nothing holds the call here, with the one or two messages made and nothing else.
    """
    loop = asyncio.get_running_loop()
    writes: list[asyncio.Task[None]] = []

    async def settle() -> None:
        while writes:
            await writes.pop()

    async def write(message: bytes) -> None:
        scan.sending_since = began = loop.time()
        await context.write(message)
        scan.sending_since, scan.progress_at = None, loop.time()
        scan.last_took = scan.progress_at - began

    async def send(message: bytes) -> None:
        await settle()
        if scan.ended is not None:
            raise copy(scan.ended)
        writes.append(asyncio.create_task(write(message)))
        # Let the write begin before the next chunk takes the loop.
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
