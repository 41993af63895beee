"""Retries: which errors are retried, how long apart, and when to give up."""

from __future__ import annotations

import pytest

from aio_client import DataLoss, DeadlineExceeded, ScanKvError, TooManyScans, Unavailable, UsageError
from aio_client._transport.retry import backoff, with_retries

pytestmark = pytest.mark.asyncio


class Clock:
    """A clock whose time passes only while something waits on it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


class FailsThenSucceeds:
    """An attempt that raises these errors in turn, each after some seconds of the clock, and then succeeds."""

    def __init__(self, clock: Clock, *errors: ScanKvError, takes: float = 0.0) -> None:
        self._clock = clock
        self._errors = list(errors)
        self._takes = takes
        self.deadlines: set[float] = set()

    async def __call__(self, deadline: float) -> str:
        self.deadlines.add(deadline)
        self._clock.now += self._takes
        if self._errors:
            raise self._errors.pop(0)
        return "done"


async def run(clock: Clock, attempt: FailsThenSucceeds, timeout: float = 60.0) -> str:
    def retries(error: ScanKvError) -> bool:
        return isinstance(error, Unavailable | TooManyScans)

    return await with_retries(attempt, timeout=timeout, retries=retries, pause=clock.pause, clock=clock)


async def test_a_success_does_not_wait() -> None:
    clock = Clock()
    assert await run(clock, FailsThenSucceeds(clock)) == "done"
    assert clock.pauses == []


async def test_attempts_share_one_deadline() -> None:
    clock = Clock()
    attempt = FailsThenSucceeds(clock, *[Unavailable("away")] * 5)
    assert await run(clock, attempt) == "done"
    assert len(clock.pauses) == 5
    assert attempt.deadlines == {160.0}


async def test_what_is_not_worth_it_is_raised_at_once() -> None:
    clock = Clock()
    with pytest.raises(DataLoss, match="damaged"):
        await run(clock, FailsThenSucceeds(clock, DataLoss("damaged")))
    assert clock.pauses == []


async def test_the_last_error_is_raised_when_the_time_is_up_with_a_note_of_the_others() -> None:
    clock = Clock()
    errors = [TooManyScans("too many"), *[Unavailable("away") for _ in range(100)]]
    with pytest.raises(Unavailable) as caught:
        await run(clock, FailsThenSucceeds(clock, *errors, takes=1.0), timeout=10.0)
    assert clock.now - 100.0 <= 11.0
    attempts = len(clock.pauses)
    assert attempts >= 3
    assert caught.value.__notes__ == [
        f"{attempts} attempts before this one failed as well:",
        f"  {attempts - 1} x Unavailable: away",
        "  1 x TooManyScans: too many",
    ]


async def test_an_error_of_another_kind_has_a_note_of_the_others_too() -> None:
    clock = Clock()
    with pytest.raises(DataLoss) as caught:
        await run(clock, FailsThenSucceeds(clock, Unavailable("away"), DataLoss("damaged")))
    assert caught.value.__notes__ == ["1 attempt before this one failed as well:", "  1 x Unavailable: away"]


async def test_a_server_that_says_when_is_not_asked_before() -> None:
    clock = Clock()
    await run(clock, FailsThenSucceeds(clock, TooManyScans("too many", retry_after=7.0)))
    assert 7.0 <= clock.pauses[0] <= 7.1


async def test_a_server_that_says_to_come_after_the_end_is_not_asked_again() -> None:
    clock = Clock()
    with pytest.raises(TooManyScans):
        await run(clock, FailsThenSucceeds(clock, TooManyScans("too many", retry_after=60.0)))
    assert clock.pauses == []


async def test_a_pause_that_takes_too_long_ends_it_with_what_was_wrong_before() -> None:
    clock = Clock()

    async def long(seconds: float) -> None:
        clock.now += 59.99 if clock.pauses else seconds
        clock.pauses.append(seconds)

    away, cause = Unavailable("away"), OSError("the connection")
    away.__cause__ = cause
    attempt = FailsThenSucceeds(clock, TooManyScans("too many"), away)
    with pytest.raises(Unavailable, match="away") as caught:
        await with_retries(attempt, timeout=60, retries=lambda _: True, pause=long, clock=clock)
    assert caught.value.__cause__ is cause
    assert len(clock.pauses) == 2
    assert caught.value.__notes__ == ["1 attempt before this one failed as well:", "  1 x TooManyScans: too many"]


async def test_what_a_pause_raises_ends_it() -> None:
    clock = Clock()

    async def closed(seconds: float) -> None:
        raise UsageError("closed")

    with pytest.raises(UsageError, match="closed"):
        await with_retries(
            FailsThenSucceeds(clock, Unavailable("away")), timeout=60, retries=lambda _: True, pause=closed, clock=clock
        )


@pytest.mark.parametrize(("failures", "bound"), [(1, 0.1), (2, 0.2), (5, 1.6), (6, 2.0), (5000, 2.0)])
async def test_pauses_are_spread_below_a_bound_that_doubles(failures: int, bound: float) -> None:
    seconds = [backoff(failures) for _ in range(200)]
    assert 0 <= min(seconds) < bound / 4
    assert bound * 3 / 4 < max(seconds) <= bound


async def test_an_attempt_that_was_cut_short_hides_nothing_of_what_was_wrong_before() -> None:
    clock, cause = Clock(), OSError("the connection")

    async def attempt(deadline: float) -> str:
        if not clock.pauses:
            raise TooManyScans("too many", retry_after=9.95) from cause
        clock.now = deadline
        raise DeadlineExceeded("nothing for 0.04 s")

    with pytest.raises(TooManyScans, match="too many") as caught:
        await with_retries(attempt, timeout=10.1, retries=lambda _: True, pause=clock.pause, clock=clock)
    assert clock.pauses
    assert caught.value.__cause__ is cause
