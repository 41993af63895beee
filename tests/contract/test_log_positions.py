"""The contract of `ChangeLog` about sizes and ages: which offset retention finds for them, and what it reports."""

from __future__ import annotations

import random
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_server.clock import ServerClock
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.changelog.records import Changes
from streaming_server.storage.rocks.store import RocksStore
from tests.support.clocks import DAY, FakeClocks
from tests.support.examples import examples
from tests.support.offline import resources
from tests.support.rocks_log import AGE_SECONDS, RocksLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from streaming_server.storage.changelog.change_log import ChangeLog

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.binary())])
MEBIBYTE = 1 << 20
AGE_MICROS = int(AGE_SECONDS * 1_000_000)


@dataclass
class MeasuredLog:
    """A log whose commits are known: the changes up to the end of each, their bytes, and the time of each."""

    logged: RocksLog
    clock: ServerClock
    machine: FakeClocks
    counts: list[int] = field(default_factory=lambda: [0])
    sizes: list[int] = field(default_factory=lambda: [0])
    micros: list[int] = field(default_factory=lambda: [0])

    @property
    def log(self) -> ChangeLog:
        return self.logged.log

    def commit(self, rows: int, row_bytes: int) -> None:
        """Appends rows that do not compress."""
        data = random.Random(len(self.counts)).randbytes(row_bytes)
        batch = pa.record_batch([pa.array(range(rows)), pa.array([data] * rows, pa.binary())], schema=SCHEMA)
        self.logged.append(Changes(np.zeros(rows, np.uint8), batch), 1, 0)
        self.counts.append(self.logged.state.count)
        self.sizes.append(self.logged.state.log_bytes)
        self.micros.append(self.clock.service_micros())

    def bytes_at(self, offset: int) -> int:
        """Returns the bytes of all changes before an offset, which is the end of a commit."""
        return self.sizes[self.counts.index(count_of(offset))]

    @property
    def slack(self) -> int:
        """How many bytes a position may be off: a MiB, and a commit."""
        return MEBIBYTE + max(after - before for before, after in pairwise(self.sizes))


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], MeasuredLog]]:
    """Returns a function that creates an empty log."""
    path = tmp_path_factory.mktemp("log") / "bucket"
    store = RocksStore(path, "bucket 0 of test.table", compression="lz4", resources=resources())
    opened = ExitStack()

    def empty() -> MeasuredLog:
        opened.close()
        machine = FakeClocks()
        clock = ServerClock(machine)
        logged = opened.enter_context(closing(RocksLog(store, path.with_suffix(".durable"), clock)))
        return MeasuredLog(logged, clock, machine)

    yield empty
    opened.close()
    store.close()


COMMITS = st.lists(st.tuples(st.integers(1, 4), st.sampled_from([50, 100_000, 700_000])), min_size=1, max_size=12)


@given(commits=COMMITS, data=st.data())
@examples(8)
def test_a_size_is_resolved_to_an_offset_that_is_off_by_at_most_a_mebibyte_and_a_commit(
    new: Callable[[], MeasuredLog], commits: list[tuple[int, int]], data: st.DataObject
) -> None:
    measured = new()
    for rows, row_bytes in commits:
        measured.commit(rows, row_bytes)
    total = measured.sizes[-1]
    for size in (0, total, data.draw(st.integers(0, total)), data.draw(st.sampled_from(measured.sizes))):
        over = measured.bytes_at(measured.log.offset_of_bytes(size))
        assert size <= over <= size + measured.slack
        under = measured.bytes_at(measured.log.offset_of_bytes(size, round_down=True))
        assert size - measured.slack <= under <= size
    for count, size in zip(measured.counts, measured.sizes, strict=True):
        found = measured.log.bytes_before(measured.log.span.offset_of(count))
        assert size <= found <= size + measured.slack


@given(commits=COMMITS, data=st.data())
@examples(8)
def test_usage_says_how_much_is_retained_and_by_which_hold(
    new: Callable[[], MeasuredLog], commits: list[tuple[int, int]], data: st.DataObject
) -> None:
    measured = new()
    assert measured.log.usage().bytes == 0
    for rows, row_bytes in commits:
        measured.commit(rows, row_bytes)
    log, total = measured.log, measured.sizes[-1]
    assert log.usage().holder == ""
    first, held = sorted(data.draw(st.tuples(*[st.sampled_from(measured.counts)] * 2)))
    measured.logged.trim(log.span.offset_of(first))
    log.holds.hold("reader", log.span.offset_of(held))
    log.holds.hold("later reader", log.span.offset_of(measured.counts[-1]))
    usage = log.usage()
    is_held = held < measured.counts[-1]
    assert usage.holder == ("reader" if is_held else "")
    for found, count in ((usage.bytes, first), (usage.held_bytes, held)):
        expected = total - measured.bytes_at(log.span.offset_of(count))
        assert abs(found - expected) <= measured.slack
    assert 0 <= usage.held_bytes <= usage.bytes <= total
    if first == measured.counts[-1]:
        assert usage.bytes == 0


PAUSED_COMMITS = st.tuples(st.sampled_from([0.0, 0.5, 5.0, 11.0, 40.0]), st.sampled_from([50, 50, 600_000]))


@given(commits=st.lists(PAUSED_COMMITS, min_size=1, max_size=12))
@examples(12)
def test_an_age_is_resolved_to_an_offset_before_which_everything_is_so_old(
    new: Callable[[], MeasuredLog], commits: list[tuple[float, int]]
) -> None:
    """Whatever the wall clock says. Nothing older than that, and than the precision, is left after the offset."""
    measured = new()
    for number, (seconds, row_bytes) in enumerate(commits):
        measured.machine.pass_time(seconds)
        measured.machine.set_wall((-1) ** number * number * DAY)
        measured.commit(2, row_bytes)
    now, written = measured.clock.service_micros(), measured.micros[1:]
    for micros in {0, *written, *(each - 1 for each in written), *(each + 7_000_000 for each in written)}:
        found = count_of(measured.log.offset_of_age(micros, now))
        old = [count for count, each in zip(measured.counts, measured.micros, strict=True) if each <= micros]
        assert found <= max(old, default=0)
        # The age of a commit is known from the next one on.
        late = [count for count, each in zip(measured.counts, written, strict=False) if each <= micros - AGE_MICROS]
        assert found >= max(late, default=0)
    assert measured.log.offset_of_age(written[-1], now) == measured.log.span.offset_of(measured.counts[-1])
