"""The timeout of reads: what has arrived while the event loop was blocked is in time, and silence is not."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from aio_client._transport.patient_timeout import PatientTimeout

pytestmark = pytest.mark.asyncio


def block(seconds: float) -> None:
    time.sleep(seconds)


async def test_what_arrives_while_the_loop_is_blocked_is_in_time() -> None:
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()

    def arrive() -> None:
        loop.call_soon_threadsafe(arrived.set)

    for _ in range(3):
        arrived.clear()
        thread = threading.Timer(0.2, arrive)
        thread.start()
        loop.call_soon(block, 0.4)
        async with PatientTimeout(0.1):
            await arrived.wait()
        thread.join()


async def test_silence_ends_in_time_also_after_the_loop_was_blocked() -> None:
    for blocked in (0.0, 0.3):
        asyncio.get_running_loop().call_soon(block, blocked)
        with pytest.raises(TimeoutError):
            async with PatientTimeout(0.05):
                await asyncio.Event().wait()


async def test_a_loop_that_is_blocked_all_the_time_does_not_wait_forever() -> None:
    loop = asyncio.get_running_loop()
    handles: list[asyncio.Handle] = []

    def block_again() -> None:
        block(0.06)
        handles.append(loop.call_later(0.09, block_again))

    block_again()
    with pytest.raises(TimeoutError):
        async with PatientTimeout(0.05):
            await asyncio.Event().wait()
    handles[-1].cancel()


async def test_a_block_that_ends_in_time_has_its_result_and_its_errors() -> None:
    for seconds in (None, 60):
        async with PatientTimeout(seconds):
            await asyncio.sleep(0)
        with pytest.raises(KeyError):
            async with PatientTimeout(seconds):
                raise KeyError
        with pytest.raises(asyncio.CancelledError):
            async with PatientTimeout(seconds):
                raise asyncio.CancelledError
