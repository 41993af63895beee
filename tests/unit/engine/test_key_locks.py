"""Locks on keys: exclusive, first come first served, and free of deadlocks."""

from __future__ import annotations

import asyncio

import pytest

from scankv.model.errors import (
    DeadlockDetected,
    LockTimeout,
    ServerDraining,
    TooManyLocks,
    TransactionConflict,
    TransactionLost,
)
from streaming_server.engine.transactions.key_locks import KeyLocks

pytestmark = pytest.mark.asyncio

FOREVER = 3600.0
LOST = TransactionLost("the transaction has ended")


def keys(*names: str) -> list[tuple[str, bytes]]:
    return [("incarnation", name.encode()) for name in names]


async def start(locks: KeyLocks, owner: str, *names: str) -> asyncio.Task[None]:
    """Starts a request, and lets it run until it waits or is done."""
    task = asyncio.create_task(locks.acquire(owner, "test.t", keys(*names), FOREVER))
    await settle()
    return task


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_released_key_goes_to_the_request_that_has_waited_longest() -> None:
    locks = KeyLocks(100)
    await locks.acquire("a", "test.t", keys("x", "y"), FOREVER)
    await locks.acquire("a", "test.t", keys("y", "z"), FOREVER)
    assert locks.count("a") == 3
    second, third = await start(locks, "b", "x"), await start(locks, "c", "w", "x")
    assert (locks.blockers("b"), locks.blockers("c"), locks.count("c")) == ({"a"}, {"a"}, 0)
    locks.release("a", LOST)
    await second
    await settle()
    assert (locks.count("b"), third.done(), locks.blockers("c")) == (1, False, {"b"})
    locks.release("b", LOST)
    await third
    assert locks.count("c") == 2


async def test_a_request_that_waits_too_long_leaves_its_place_to_the_next() -> None:
    locks = KeyLocks(100)
    await locks.acquire("a", "test.t", keys("x"), FOREVER)
    with pytest.raises(LockTimeout, match=r"held locks on some of the keys of table test\.t for 0\.01 s") as error:
        await locks.acquire("b", "test.t", keys("x", "y"), 0.01)
    assert isinstance(error.value, TransactionConflict)
    with pytest.raises(LockTimeout):
        await locks.acquire("b", "test.t", keys("x"), 0)
    third = await start(locks, "c", "x")
    locks.release("a", LOST)
    await third
    assert (locks.count("b"), locks.blockers("b")) == (0, set())


async def test_a_cancelled_request_waits_no_more() -> None:
    locks = KeyLocks(100)
    await locks.acquire("a", "test.t", keys("x"), FOREVER)
    second = await start(locks, "b", "x")
    second.cancel()
    await settle()
    assert second.cancelled()
    locks.release("a", LOST)
    await locks.acquire("c", "test.t", keys("x"), 0)


async def test_the_request_that_closes_a_circle_is_refused_and_the_others_continue() -> None:
    locks = KeyLocks(100)
    for owner, key in (("a", "x"), ("b", "y"), ("c", "z")):
        await locks.acquire(owner, "test.t", keys(key), FOREVER)
    first, second = await start(locks, "a", "y"), await start(locks, "b", "z")
    with pytest.raises(DeadlockDetected, match=r"keys of table test\.t"):
        await locks.acquire("c", "test.t", keys("x"), FOREVER)
    assert not first.done()
    assert not second.done()
    locks.release("c", LOST)
    await second
    locks.release("b", LOST)
    await first


async def test_a_circle_over_a_second_call_of_a_waiting_transaction_is_found() -> None:
    locks = KeyLocks(100)
    await locks.acquire("a", "test.t", keys("x"), FOREVER)
    await locks.acquire("b", "test.t", keys("y"), FOREVER)
    # b waits for a. a waits for the key that b locks in a second call.
    waiting = await start(locks, "b", "x")
    await locks.acquire("b", "test.t", keys("z"), FOREVER)
    with pytest.raises(DeadlockDetected):
        await locks.acquire("a", "test.t", keys("z"), FOREVER)
    locks.release("a", LOST)
    await waiting


async def test_the_end_of_a_transaction_ends_its_waiting_requests() -> None:
    locks = KeyLocks(100)
    await locks.acquire("a", "test.t", keys("x"), FOREVER)
    waiting = await start(locks, "b", "x")
    locks.release("b", LOST)
    with pytest.raises(TransactionLost):
        await waiting
    assert locks.count("a") == 1


async def test_nothing_waits_once_the_locks_are_closed() -> None:
    locks = KeyLocks(100)
    await locks.acquire("a", "test.t", keys("x"), FOREVER)
    waiting = await start(locks, "b", "x")
    locks.close(ServerDraining("the server is shutting down"))
    with pytest.raises(ServerDraining):
        await waiting
    with pytest.raises(ServerDraining):
        await locks.acquire("c", "test.t", keys("x"), FOREVER)
    locks.release("a", LOST)
    await locks.acquire("c", "test.t", keys("x"), FOREVER)


async def test_no_more_keys_are_locked_than_the_limit_and_a_refused_request_locks_none() -> None:
    locks = KeyLocks(3)
    await locks.acquire("a", "test.t", keys("x", "y"), FOREVER)
    with pytest.raises(TooManyLocks, match=r"locked 2 keys.*lock 2 more; the limit is 3"):
        await locks.acquire("b", "test.t", keys("z", "w"), FOREVER)
    await locks.acquire("a", "test.t", keys("x", "y"), FOREVER)
    await locks.acquire("b", "test.t", keys("z"), FOREVER)
