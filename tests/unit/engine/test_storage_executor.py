"""The threads that run blocking work for the event loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import TYPE_CHECKING

import pytest

from streaming_server.engine.tasks.executor import StorageExecutor

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def executor() -> Iterator[StorageExecutor]:
    executor = StorageExecutor(2)
    yield executor
    executor.close()


class Gate:
    """Work that has begun once `begun` is set, and ends once `end` is set."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.end = threading.Event()
        self.ended = False

    def __call__(self) -> str:
        self.begun.set()
        assert self.end.wait(30)
        self.ended = True
        return "ended"

    async def wait_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, 30)


class Value:
    """Something that a weak reference can watch."""


@pytest.mark.asyncio
async def test_work_runs_in_as_many_threads_as_allowed(executor: StorageExecutor) -> None:
    gates = [Gate(), Gate(), Gate()]
    calls = [asyncio.create_task(executor.run(gate)) for gate in gates]
    await gates[0].wait_begun()
    await gates[1].wait_begun()
    assert not gates[2].begun.is_set()
    gates[1].end.set()
    await gates[2].wait_begun()
    gates[0].end.set()
    gates[2].end.set()
    assert await asyncio.gather(*calls) == ["ended"] * 3


@pytest.mark.asyncio
async def test_few_calls_start_few_threads(executor: StorageExecutor) -> None:
    threads = {await executor.run(threading.get_ident) for _ in range(20)}
    assert len(threads) == 1


@pytest.mark.asyncio
async def test_a_cancelled_call_waits_for_work_that_has_begun(executor: StorageExecutor) -> None:
    gate = Gate()
    call = asyncio.create_task(executor.run(gate))
    await gate.wait_begun()
    for _ in range(3):
        call.cancel()
        await asyncio.sleep(0)
        assert not call.done()
    gate.end.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert gate.ended


@pytest.mark.asyncio
async def test_a_cancelled_call_never_begins_waiting_work(executor: StorageExecutor) -> None:
    running, waiting = [Gate(), Gate()], Gate()
    calls = [asyncio.create_task(executor.run(gate)) for gate in running]
    for gate in running:
        await gate.wait_begun()
    call = asyncio.create_task(executor.run(waiting))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    for gate in running:
        gate.end.set()
    await asyncio.gather(*calls)
    # Both threads have taken later work, and so passed the cancelled work.
    assert await asyncio.gather(*(executor.run(divmod, 7, 3) for _ in range(4))) == [(2, 1)] * 4
    assert not waiting.begun.is_set()


@pytest.mark.asyncio
async def test_nothing_of_a_call_outlives_it(executor: StorageExecutor) -> None:
    gc.disable()
    try:
        value = await executor.run(Value)
        result = weakref.ref(value)
        del value
        assert result() is None

        def fail(argument: Value) -> None:
            raise ValueError(argument.__class__)

        given = Value()
        argument = weakref.ref(given)
        with pytest.raises(ValueError, match="Value"):
            await executor.run(fail, given)
        del given
        assert argument() is None
    finally:
        gc.enable()


@pytest.mark.asyncio
async def test_closing_waits_for_running_work() -> None:
    executor, gate = StorageExecutor(1), Gate()
    call = asyncio.create_task(executor.run(gate))
    await gate.wait_begun()
    closing = asyncio.create_task(asyncio.to_thread(executor.close))
    await asyncio.sleep(0)
    assert not closing.done()
    gate.end.set()
    await closing
    assert await call == "ended"
    with pytest.raises(RuntimeError):
        await executor.run(divmod, 7, 3)


def test_threads_outlive_a_loop_that_was_closed_during_their_work() -> None:
    executor, gate = StorageExecutor(1), Gate()

    async def begin() -> None:
        call = asyncio.create_task(executor.run(gate))
        await gate.wait_begun()
        assert not call.done()
        raise KeyboardInterrupt

    loop = asyncio.new_event_loop()
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(begin())
    loop.close()
    gate.end.set()
    assert asyncio.run(executor.run(divmod, 7, 3)) == (2, 1)
    executor.close()
