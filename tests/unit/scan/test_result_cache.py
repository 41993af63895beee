"""The result cache: which callers share a computation, what is kept, and what happens to cancelled callers."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from scankv.model.errors import DataLoss
from streaming_server.scan.queries.result_cache import CachedResult, ResultCache

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from streaming_server.scan.queries.result_cache import Computation

pytestmark = pytest.mark.asyncio

MEBIBYTE = 1 << 20


class VersionedTable:
    """A table of which only the version is known, and computations on it that wait at given points.

    Attributes:
        version: Of now.
        started: How many computations have begun.
        may_open: Lets a computation take its view.
        may_end: Lets it end.
    """

    def __init__(self, cache: ResultCache) -> None:
        self.cache = cache
        self.version = b"v1"
        self.started = 0
        self.cancelled = 0
        self.may_open, self.may_end = asyncio.Event(), asyncio.Event()
        self.may_open.set()
        self.may_end.set()
        self.size = 10
        self.failure: Exception | None = None
        self.kept: weakref.ref[object] | None = None

    def ask(self, query: bytes = b"q") -> Coroutine[object, object, bytes]:
        return self.cache.get_or_compute(query, lambda: self.version, self._compute)

    async def _compute(self, computation: Computation) -> CachedResult:
        self.started += 1
        try:
            await self.may_open.wait()
            computation.begin_view()
            version = self.version
            await asyncio.sleep(0)
            computation.set_view_version(version)
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.failure is not None:
            rows = {1, 2, 3}
            self.kept = weakref.ref(rows)
            raise self.failure
        return CachedResult(version, version + b"." * (self.size - len(version)), b" cost")


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_an_answer_is_computed_once_and_given_again_until_the_version_changes() -> None:
    table = VersionedTable(ResultCache(MEBIBYTE))
    assert await table.ask() == b"v1........ cost"
    assert await table.ask() == b"v1........"
    table.version = b"v2"
    assert await table.ask() == b"v2........ cost"
    assert (table.cache.computed, table.cache.cached, table.started) == (2, 1, 2)


async def test_who_comes_after_a_write_joins_as_long_as_the_view_is_not_taken() -> None:
    table = VersionedTable(ResultCache(MEBIBYTE))
    table.may_open.clear()
    first = asyncio.ensure_future(table.ask())
    await turns()
    table.version = b"v2"
    second = asyncio.ensure_future(table.ask())
    await turns()
    table.may_open.set()
    assert (await first, await second) == (b"v2........ cost", b"v2........")
    assert table.started == 1


@pytest.mark.parametrize("steps", range(6))
async def test_who_comes_after_a_write_never_gets_an_answer_from_before_it(steps: int) -> None:
    table = VersionedTable(ResultCache(MEBIBYTE))
    table.may_end.clear()
    first = asyncio.ensure_future(table.ask())
    await turns(steps)
    table.version = b"v2"
    second = asyncio.ensure_future(table.ask())
    await turns()
    table.may_end.set()
    assert (await second).startswith(b"v2")
    await first


async def test_one_that_is_overtaken_by_a_write_is_answered_but_not_kept() -> None:
    table = VersionedTable(ResultCache(MEBIBYTE))
    table.may_end.clear()
    first = asyncio.ensure_future(table.ask())
    await turns()
    table.version = b"v2"
    table.may_end.set()
    assert (await first).startswith(b"v1")
    assert table.cache.cached_bytes == 0


async def test_a_computation_ends_when_nobody_waits_any_more_and_nobody_joins_it_then() -> None:
    table = VersionedTable(ResultCache(MEBIBYTE))
    table.may_end.clear()
    waiting = [asyncio.ensure_future(table.ask()) for _ in range(3)]
    await turns()
    for task in waiting:
        task.cancel()
    late = asyncio.ensure_future(table.ask())
    await turns()
    assert all(task.cancelled() for task in waiting)
    assert table.cancelled == (1 if table.started == 2 else 0)
    table.may_end.set()
    assert (await late).startswith(b"v1")


async def test_one_that_joins_right_before_the_others_give_up_is_answered() -> None:
    table = VersionedTable(ResultCache(MEBIBYTE))
    table.may_end.clear()
    first = asyncio.ensure_future(table.ask())
    await turns()
    late = asyncio.ensure_future(table.ask())
    await turns()
    first.cancel()
    await turns()
    table.may_end.set()
    assert await late == b"v1........"
    assert (table.started, table.cancelled) == (1, 0)


async def test_an_error_goes_to_all_who_wait_and_is_not_kept() -> None:
    table = VersionedTable(ResultCache(MEBIBYTE))
    table.failure = DataLoss("a block is damaged")
    found = await asyncio.gather(*(table.ask() for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in found] == [DataLoss] * 3
    assert len({id(error) for error in found}) == 3
    table.failure = None
    assert await table.ask() == b"v1........ cost"


async def test_a_bug_in_a_computation_goes_to_all_who_wait() -> None:
    table = VersionedTable(ResultCache(MEBIBYTE))
    table.failure = RuntimeError("a bug")
    found = await asyncio.gather(*(table.ask() for _ in range(3)), return_exceptions=True)
    assert [str(error) for error in found] == ["a bug"] * 3


async def test_an_error_keeps_nothing_of_what_was_computed() -> None:
    gc.disable()
    try:
        table = VersionedTable(ResultCache(MEBIBYTE))
        table.failure = DataLoss("a block is damaged")
        with pytest.raises(DataLoss):
            await table.ask()
        assert table.kept is not None
        table.failure = None
        assert table.kept() is None
    finally:
        gc.enable()


async def test_a_failure_that_nobody_waits_for_is_no_complaint(caplog: pytest.LogCaptureFixture) -> None:
    table = VersionedTable(ResultCache(MEBIBYTE))
    table.may_end.clear()
    table.failure = RuntimeError("a bug")
    first = asyncio.ensure_future(table.ask())
    await turns()
    table.may_end.set()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await turns()
    # Both keep the frames of the computation alive.
    table.failure = None
    del first
    gc.collect()
    assert not caplog.records


async def test_the_memory_of_answers_is_bounded_and_the_one_not_asked_for_goes_first() -> None:
    cache = ResultCache(16 * 1024)
    table = VersionedTable(cache)
    table.size = 500
    for number in range(30):
        await table.ask(b"%d" % number)
        assert cache.cached_bytes <= 16 * 1024
        await table.ask(b"0")
    assert cache.computed == 30
    await table.ask(b"1")
    assert cache.computed == 31
    await table.ask(b"29")
    assert cache.computed == 31


async def test_an_answer_over_a_sixteenth_of_the_memory_is_not_kept() -> None:
    table = VersionedTable(ResultCache(16 * 1024))
    table.size = 1025
    for _ in range(2):
        await table.ask()
    assert (table.cache.computed, table.cache.cached_bytes) == (2, 0)


async def test_of_one_query_only_the_newest_answer_is_kept() -> None:
    table = VersionedTable(ResultCache(MEBIBYTE))
    await table.ask()
    one = table.cache.cached_bytes
    for version in (b"v2", b"v3"):
        table.version = version
        await table.ask()
        assert table.cache.cached_bytes == one


async def test_without_memory_nothing_is_kept_but_those_who_ask_at_once_share() -> None:
    table = VersionedTable(ResultCache(0))
    await asyncio.gather(table.ask(), table.ask())
    await table.ask()
    assert (table.cache.computed, table.cache.cached, table.cache.cached_bytes) == (2, 1, 0)


async def test_queries_that_were_found_valid_are_remembered_for_their_schema_alone() -> None:
    cache = ResultCache(0)
    cache.remember_valid(b"q", "i", 1)
    assert cache.is_valid(b"q", "i", 1)
    assert not any(cache.is_valid(*other) for other in ((b"p", "i", 1), (b"q", "j", 1), (b"q", "i", 2)))
