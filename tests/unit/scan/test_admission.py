"""Admission control admits scans in order of arrival, up to the limits and never beyond them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from scankv.model.errors import ScanKvError, ServerDraining, TooManyScans
from streaming_server.scan.admission.admission import Admission, AdmissionLimits, Holder
from streaming_server.scan.admission.live_scans import RegisteredScan

FOREVER = 60.0
pytestmark = pytest.mark.asyncio


def admission(
    *, live: int = 2, per_bucket: int = 10, waiting: int = 4, wait: float = FOREVER, share: float = 0.75
) -> Admission:
    return Admission(
        AdmissionLimits(live=live, live_per_bucket=per_bucket, waiting=waiting, wait_seconds=wait, share=share)
    )


class Scans:
    """Scans that are admitted by name, and end when the test says so."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.live: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.ended: dict[str, str] = {}
        self.admitted: dict[str, asyncio.Event] = {}
        self._stalled: set[str] = set()

    async def start(self, name: str, *buckets: int, principal: str = "", stalled: bool = True) -> None:
        """Starts a scan whose reader took nothing from the beginning of the clock on, or has just taken something."""
        self._ends[name], self.admitted[name] = asyncio.Event(), asyncio.Event()
        if stalled:
            self.stall(name)
        self.tasks[name] = asyncio.create_task(self._run(name, buckets or (0,), principal))
        await asyncio.sleep(0)

    async def _run(self, name: str, buckets: tuple[int, ...], principal: str = "") -> None:
        def end(reason: str) -> None:
            self.ended[name] = reason
            leave()

        holder = Holder(
            principal=principal,
            is_admin=principal == "admin",
            stalled_since=lambda: 0.0 if name in self._stalled else None,
            end=end,
        )
        async with self.admission.admit("test.table", buckets, holder) as leave:
            self.live.append(name)
            self.admitted[name].set()
            await self._ends[name].wait()
            self.live.remove(name)

    def stall(self, name: str) -> None:
        self._stalled.add(name)

    async def end_all(self) -> None:
        for each in self._ends.values():
            each.set()
        await asyncio.gather(*self.tasks.values())

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self.tasks[name]
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_who_waits_is_let_in_in_the_order_of_coming() -> None:
    scans = Scans(admission(live=2))
    for name in "abcde":
        await scans.start(name)
    assert scans.live == ["a", "b"]
    assert scans.admission.waiting == 3
    await scans.end("b")
    assert scans.live == ["a", "c"]
    await scans.end("a")
    assert scans.live == ["c", "d"]
    for name in "cde":
        await scans.end(name)
    assert (scans.live, scans.admission.waiting) == ([], 0)


async def test_a_full_bucket_keeps_nobody_from_another_one() -> None:
    scans = Scans(admission(live=10, per_bucket=1))
    await scans.start("on 0", 0)
    await scans.start("on 0 and 1", 0, 1)
    await scans.start("on 2", 2)
    assert scans.live == ["on 0", "on 2"]
    await scans.end("on 0")
    assert scans.live == ["on 2", "on 0 and 1"]
    await scans.start("on 1", 1)
    assert scans.live == ["on 2", "on 0 and 1"]
    for name in ("on 2", "on 0 and 1", "on 1"):
        await scans.end(name)


async def test_a_full_queue_refuses_and_names_the_limit() -> None:
    scans = Scans(admission(live=1, waiting=1))
    await scans.start("a")
    await scans.start("b")
    with pytest.raises(TooManyScans, match=r"max_live_scans\), and 1 more are waiting") as caught:
        await scans._run("c", (0,))
    assert caught.value.retry_after
    await scans.end("a")
    await scans.end("b")


async def test_a_wait_that_takes_too_long_is_refused_and_leaves_the_queue() -> None:
    scans = Scans(admission(per_bucket=1, wait=0.01))
    await scans.start("a")
    with pytest.raises(TooManyScans, match=r"bucket 0 of test\.table .* none ended within 0\.01 s"):
        async with scans.admission.admit("test.table", (0,)):
            pass
    assert scans.admission.waiting == 0
    await scans.end("a")
    await scans.start("b")
    assert scans.live == ["b"]
    await scans.end("b")


async def test_one_that_is_cancelled_while_it_waits_takes_no_place() -> None:
    scans = Scans(admission(live=1))
    await scans.start("a")
    await scans.start("b")
    scans.tasks["b"].cancel()
    await asyncio.gather(scans.tasks["b"], return_exceptions=True)
    assert scans.admission.waiting == 0
    await scans.end("a")
    await scans.start("c")
    assert scans.live == ["c"]
    await scans.end("c")


async def test_one_that_is_cancelled_as_it_is_let_in_gives_its_place_to_the_next() -> None:
    scans = Scans(admission(live=1))
    async with AsyncExitStack() as first:
        await first.enter_async_context(scans.admission.admit("test.table", (0,)))
        await scans.start("b")
        await scans.start("c")
    scans.tasks["b"].cancel()
    await asyncio.gather(scans.tasks["b"], return_exceptions=True)
    await asyncio.sleep(0)
    assert scans.live == ["c"]
    await scans.end("c")


async def test_one_that_gives_its_place_back_early_lets_one_other_in_and_gives_nothing_back_later() -> None:
    scans = Scans(admission(live=1))
    async with scans.admission.admit("test.table", (0,)) as leave:
        await scans.start("b")
        await scans.start("c")
        leave()
        leave()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert scans.live == ["b"]
    await asyncio.sleep(0)
    assert scans.live == ["b"]
    await scans.end("b")
    assert scans.live == ["c"]
    await scans.end("c")


async def test_closing_refuses_those_who_wait_and_all_who_come() -> None:
    scans = Scans(admission(live=1))
    await scans.start("a")
    await scans.start("b")
    scans.admission.close()
    with pytest.raises(ServerDraining):
        await scans.tasks["b"]
    with pytest.raises(ServerDraining):
        await scans._run("c", (0,))
    await scans.end("a")


@pytest.mark.parametrize(("live", "per_bucket", "limit"), [(4, 10, "max_live_scans"), (10, 4, "max_live_scans_per")])
async def test_a_stalled_scan_beyond_the_share_gives_its_place_to_another_principal(
    live: int, per_bucket: int, limit: str
) -> None:
    scans = Scans(admission(live=live, per_bucket=per_bucket, waiting=1))
    for name in "abcd":
        await scans.start(name, principal="mine", stalled=name != "a")
    await scans.start("more", principal="mine")
    assert scans.ended == {}
    await scans.start("other", principal="other")
    async with asyncio.timeout(FOREVER):
        await scans.admitted["other"].wait()
    assert list(scans.ended) == ["b"]
    assert scans.live == ["a", "b", "c", "d", "other"]
    for text in ('4 of them of the principal "mine"', "each principal keeps 3 (max_caller_share)", limit):
        assert text in scans.ended["b"]
    # The others are within the share.
    await scans.start("another", principal="other")
    assert list(scans.ended) == ["b"]
    with pytest.raises(TooManyScans):
        await scans.tasks["another"]
    del scans.tasks["another"]
    await scans.end_all()


async def test_scans_that_their_readers_read_and_those_of_a_server_without_tokens_keep_their_places() -> None:
    for principals, stalled in ((("mine", "other"), False), (("", ""), True), (("mine", "mine"), True)):
        scans = Scans(admission(live=4))
        for name in "abcd":
            await scans.start(name, principal=principals[0], stalled=stalled)
        await scans.start("waits", principal=principals[1])
        assert (scans.ended, scans.admission.waiting) == ({}, 1)
        await scans.end_all()


async def test_a_scan_that_stalls_while_another_principal_waits_gives_its_place() -> None:
    scans = Scans(admission(live=4))
    for name in "abcd":
        await scans.start(name, principal="mine", stalled=False)
    await scans.start("other", principal="other")
    assert scans.admission.waiting == 1
    scans.stall("c")
    async with asyncio.timeout(FOREVER):
        await scans.admitted["other"].wait()
    assert list(scans.ended) == ["c"]
    await scans.end_all()


async def test_an_admin_gets_the_last_places_if_others_stall_within_their_shares() -> None:
    scans = Scans(admission(live=20, per_bucket=20))
    for number in range(20):
        await scans.start(f"{number}", principal=f"p{number % 2}")
    await scans.start("other", principal="other")
    assert (scans.ended, scans.admission.waiting) == ({}, 1)
    await scans.start("first", principal="admin")
    assert list(scans.ended) == ["0"]
    await scans.start("second", principal="admin")
    assert list(scans.ended) == ["0"]
    await scans.end_all()


async def test_one_scan_makes_room_at_all_limits_that_it_counts_against() -> None:
    scans = Scans(admission(live=100, per_bucket=4, share=0.5))
    await scans.start("on 2", 2, principal="mine")
    await scans.start("on 1 and 2", 1, 2, principal="mine")
    for number in range(3):
        await scans.start(f"on 1: {number}", 1, principal="mine")
    for number in range(2):
        await scans.start(f"on 2: {number}", 2, principal="mine")
    await scans.start("other", 1, 2, principal="other")
    assert list(scans.ended) == ["on 1 and 2"]
    async with asyncio.timeout(FOREVER):
        await scans.admitted["other"].wait()
    await scans.end_all()


async def test_no_scan_ends_if_its_place_is_not_enough() -> None:
    scans = Scans(admission(live=100, per_bucket=2, share=0.5))
    for number in range(2):
        await scans.start(f"on 1: {number}", 1, principal="mine")
        await scans.start(f"on 2: {number}", 2, principal="mine", stalled=False)
    await scans.start("other", 1, 2, principal="other")
    assert (scans.ended, scans.admission.waiting) == ({}, 1)
    scans.stall("on 2: 1")
    async with asyncio.timeout(FOREVER):
        await scans.admitted["other"].wait()
    assert list(scans.ended) == ["on 1: 0", "on 2: 1"]
    await scans.end_all()


async def test_the_scan_for_which_another_one_ends_gets_its_place() -> None:
    scans = Scans(admission(live=20, per_bucket=4, share=0.2))
    for number in range(4):
        await scans.start(f"mine {number}", 0, principal="mine")
        # All of its share of the server, but nothing of bucket 0.
        await scans.start(f"other {number}", 1 + number, principal="other")
    await scans.start("waits", 0, principal="mine")
    await scans.start("gets it", 0, principal="other")
    async with asyncio.timeout(FOREVER):
        await scans.admitted["gets it"].wait()
    assert list(scans.ended) == ["mine 0"]
    assert not scans.admitted["waits"].is_set()
    await scans.end_all()


class CountsComparisons(str):
    """A principal that counts how often principals are compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountsComparisons.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("waits", ["mine", "other"])
async def test_a_scan_that_waits_looks_at_few_places_for_each_of_many_full_buckets(waits: str) -> None:
    scans, buckets = Scans(admission(live=200, per_bucket=64)), range(256)
    for number in range(64):
        await scans.start(f"stalled {number}", *buckets[:-1], principal=CountsComparisons("mine"))
        await scans.start(f"read {number}", buckets[-1], principal=CountsComparisons("mine"), stalled=False)
    CountsComparisons.compared = 0
    await scans.start("waits", *buckets, principal=CountsComparisons(waits))
    assert (scans.ended, scans.admission.waiting) == ({}, 1)
    assert 0 < CountsComparisons.compared < 10 * (128 + len(buckets))
    await scans.end_all()


async def test_a_scan_whose_end_would_not_release_its_place_at_once_does_not_count_as_stalled() -> None:
    class Source:
        def abort(self, error: ScanKvError) -> None:
            pass

    scan = RegisteredScan(table="test.table", buckets=(0,), snapshot_id="", peer="", sending_since=1.0)
    assert scan.stalled_since() is None
    scan.hold(Source())
    assert scan.stalled_since() == 1.0
