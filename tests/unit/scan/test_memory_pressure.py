"""When a server refuses calls for lack of memory, and when it accepts them again."""

from __future__ import annotations

import pytest

from scankv.model.errors import ServerBusy
from streaming_server.scan.admission.memory_pressure import MemoryPressure, anonymous_bytes

MEBIBYTE = 1 << 20

pytestmark = pytest.mark.asyncio


async def test_calls_are_refused_above_seven_tenths_of_the_limit_until_below_six_tenths(
    caplog: pytest.LogCaptureFixture,
) -> None:
    used = [0]
    pressure = MemoryPressure(1000 * MEBIBYTE, lambda: used[-1] * MEBIBYTE)
    seen = []
    for mebibytes in (400, 690, 710, 990, 650, 590, 690, 710):
        used.append(mebibytes)
        await pressure.check()
        seen.append(pressure.is_high)
    assert seen == [False, False, True, True, True, False, False, True]
    assert len([message for message in caplog.messages if "it refuses calls" in message]) == 1
    refusal = pressure.refusal()
    assert isinstance(refusal, ServerBusy)
    assert refusal.retry_after
    assert "takes 710 MiB of memory, and may have 1,000 MiB" in refusal.message
    assert pressure.refused == 1


@pytest.mark.parametrize(("limit", "used"), [(None, 1 << 40), (1000, None)])
async def test_nothing_is_refused_where_limit_or_memory_is_unknown(limit: int | None, used: int | None) -> None:
    pressure = MemoryPressure(limit, lambda: used)
    await pressure.check()
    assert not pressure.is_high


async def test_memory_that_is_freed_is_returned_to_the_system() -> None:
    before = anonymous_bytes()
    assert before is not None
    large = [bytes(100_000) for _ in range(2000)]
    held = anonymous_bytes()
    assert held is not None
    assert held - before > 100 * MEBIBYTE
    kept = large[::100]
    del large
    await MemoryPressure(1).check()
    after = anonymous_bytes()
    assert after is not None
    assert held - after > 100 * MEBIBYTE
    assert len(kept) == 20
