"""How often the sweep passes through a table, and what it reports about expired rows, in simulated time."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from streaming_server.engine.bucket.sweep_record import MAX_SHARE, SweepRecord

ROWS = 1_000_000


@dataclass
class SweptRows:
    """A table in which rows live for a TTL, and whose passes take a time.

    Attributes:
        ttl: The TTL in seconds.
        alive: The rows that have not expired.
        expired: The rows that have expired and are still stored.
    """

    ttl: int
    look: float
    pass_seconds: float
    alive: float = ROWS
    expired: float = 0.0
    now: float = 0.0
    most: float = 0.0
    """The greatest share of expired rows since `most` was set to 0."""
    record: SweepRecord = field(default_factory=SweepRecord)
    passes: int = 0

    @property
    def share(self) -> float:
        return self.expired / (self.alive + self.expired)

    def wait(self, seconds: float) -> None:
        """Lets time pass, in which rows expire and others are written."""
        self.now += seconds
        self.expired += self.alive * seconds / self.ttl
        self.most = max(self.most, self.share)

    def look_after(self) -> None:
        """Makes a pass, if it is due, at a constant pace: on the average, it sees what expires in half of its time."""
        self.wait(self.look)
        if not self.record.is_due(self.now, self.ttl):
            return
        self.passes += 1
        self.record.begin_pass(self.now)
        self.record.add_rows(round(self.alive + self.expired))
        before = self.expired
        self.wait(self.pass_seconds)
        removed = (before + self.expired) / 2
        self.expired -= removed
        self.record.add_removed(round(removed))
        self.record.end_pass(self.now, self.ttl)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.look_after()


@given(ttl=st.integers(30, 30 * 86_400), look=st.floats(0.01, 1), pace=st.floats(0, 0.05))
def test_at_most_a_tenth_of_the_rows_has_expired_if_a_pass_takes_a_twentieth_of_the_ttl(
    ttl: int, look: float, pace: float
) -> None:
    # The server looks at most once a simulated 1/400 of the TTL, or the test would take long.
    table = SweptRows(ttl, max(look, ttl / 400), ttl * pace)
    table.run(ttl)
    table.most = 0.0
    table.run(ttl)
    assert table.most <= MAX_SHARE
    assert table.share <= table.record.share(table.now) + 0.01
    assert table.record.share(table.now) <= 1.1 * MAX_SHARE


@given(ttl=st.integers(20, 30 * 86_400), pace=st.floats(0.2, 2))
def test_a_sweep_that_is_too_slow_is_reported(ttl: int, pace: float) -> None:
    table = SweptRows(ttl, ttl / 400, ttl * pace)
    table.run(6 * ttl * (1 + pace))
    assert table.record.share(table.now) > MAX_SHARE
    # A pass that does not end counts, too.
    ended = table.now
    assert table.record.share(ended + 100 * ttl * (1 + pace)) == 1.0


@given(ttl=st.integers(60, 86_400), share=st.floats(0.2, 1))
def test_rows_that_expire_at_once_are_reported_by_the_next_pass_and_not_by_the_one_after(
    ttl: int, share: float
) -> None:
    record, now, rows = SweepRecord(), 0.0, ROWS
    shares: list[float] = []
    assert not record.is_due(now, ttl)
    for removed in (0, round(ROWS * share), 0):
        while not record.is_due(now, ttl):
            now += min(1.0, ttl / 400)
        record.begin_pass(now)
        record.add_rows(rows)
        assert record.share(now) == (shares[-1] if shares else 0.0)
        record.add_removed(removed)
        rows -= removed
        record.end_pass(now, ttl)
        shares.append(record.share(now))
    assert shares == [0.0, round(ROWS * share) / ROWS, 0.0]
    assert record.removed == ROWS - rows


def test_a_pass_comes_twenty_times_in_a_ttl_and_once_an_hour() -> None:
    for ttl, seconds in ((3600, 180), (86_400, 3600), (40 * 86_400, 3600)):
        record = SweepRecord()
        record.begin_pass(100.0)
        record.add_rows(ROWS)
        record.end_pass(100.0, ttl)
        assert not record.is_due(100 + seconds - 1, ttl)
        assert record.is_due(100 + seconds, ttl)


def test_a_shorter_ttl_brings_the_next_pass_forward() -> None:
    record = SweepRecord()
    record.begin_pass(0.0)
    record.end_pass(0.0, 86_400)
    assert not record.is_due(100.0, 86_400)
    assert record.is_due(100.0, 60)
