"""Detached tasks end in their own time, whatever becomes of their caller."""

from __future__ import annotations

import asyncio

import pytest

from scankv.model.errors import ScanKvError, SchemaMismatch, TableNotFound
from streaming_server.engine.tasks.detached_tasks import DetachedTasks

pytestmark = pytest.mark.asyncio


async def test_a_task_ends_although_its_caller_was_cancelled() -> None:
    tasks, may_end, ended = DetachedTasks(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await may_end.wait()
        ended.set()

    async def call() -> None:
        await asyncio.shield(tasks.start(work()))

    caller = asyncio.create_task(call())
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    may_end.set()
    await tasks.join()
    assert ended.is_set()


async def test_join_waits_for_tasks_that_a_task_has_started() -> None:
    tasks, done = DetachedTasks(), []

    async def work(left: int) -> None:
        await asyncio.sleep(0)
        if left:
            tasks.start(work(left - 1))
        done.append(left)

    tasks.start(work(3))
    await tasks.join()
    assert sorted(done) == [0, 1, 2, 3]


@pytest.mark.parametrize(("failure", "messages"), [(None, []), ("it failed: %s", ["it failed: no"])])
async def test_a_failure_is_raised_to_the_caller_and_logged_on_request(
    caplog: pytest.LogCaptureFixture, failure: str | None, messages: list[str]
) -> None:
    async def fail() -> None:
        raise LookupError("no")

    tasks = DetachedTasks(failure)
    with pytest.raises(LookupError, match="no"):
        await asyncio.shield(tasks.start(fail()))
    await tasks.join()
    # Garbage collection may find pending tasks of earlier tests, which asyncio logs.
    assert [each.message for each in caplog.records if each.name.startswith("streaming_server")] == messages


@pytest.mark.parametrize("error", [TableNotFound("the table was dropped"), SchemaMismatch("no such column")])
async def test_the_end_of_work_on_a_dropped_table_or_a_wrong_request_is_no_error_in_the_log(
    caplog: pytest.LogCaptureFixture, error: ScanKvError
) -> None:
    async def fail() -> None:
        raise error

    tasks = DetachedTasks("it failed: %s")
    with caplog.at_level("INFO"), pytest.raises(type(error)):
        await asyncio.shield(tasks.start(fail()))
    await tasks.join()
    assert [record.levelname for record in caplog.records if record.message.startswith("it failed")] == ["INFO"]
