"""How the turns of an event loop are measured."""

from __future__ import annotations

import asyncio

from streaming_server.engine.tasks.loop_turns import BOUNDS_SECONDS, LoopTurns


class SteppedClock:
    """A clock that moves only when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Returns the time in seconds."""
        return self.now


def test_a_turn_is_counted_by_its_duration_and_waiting_for_events_is_not_part_of_it() -> None:
    clock = SteppedClock()
    turns = LoopTurns(clock)

    async def work() -> None:
        await asyncio.sleep(0)
        before = list(turns.counts)
        for seconds in (0.0001, 0.003, 0.003, 5.0):
            clock.now += seconds
            await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        after = turns.counts
        assert [late - early for early, late in zip(before, after, strict=True)][1:] == [0, 0, 0, 2, 0, 0, 0, 0, 1]

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(turns)) as runner:
        runner.run(work())
    assert turns.longest == 5.0
    assert len(turns.counts) == len(BOUNDS_SECONDS) + 1
