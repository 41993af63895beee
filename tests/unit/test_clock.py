"""The server's clocks: time that cannot be set, and commit times that do not jump."""

from __future__ import annotations

import ast
import logging
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streaming_server
from scankv.model.errors import InvalidRequest
from streaming_server.clock import ClockLimits, ServerClock, StoredTimes, SystemClocks, next_commit_time
from streaming_server.shared_times import SharedTimes, create_times
from tests.support.clocks import DAY, HOUR, FakeClocks

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMITS = ClockLimits()
STEP = LIMITS.max_step_seconds
WALL_CLOCKS = {
    ("time", "time"),
    ("time", "time_ns"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
}


def clock_of(machine: FakeClocks, stored: StoredTimes | None = None) -> ServerClock:
    return ServerClock(machine, stored, LIMITS)


@pytest.fixture
def machine() -> FakeClocks:
    return FakeClocks()


@pytest.fixture
def clock(machine: FakeClocks) -> ServerClock:
    return clock_of(machine)


def error(clock: ServerClock, machine: FakeClocks) -> float:
    """Returns how many seconds commit time is ahead of the machine's wall clock."""
    return (clock.commit_micros() - machine.wall_micros) / 1e6


@contextmanager
def shared_times(workers: int) -> Iterator[list[SharedTimes]]:
    descriptor = create_times(workers)
    try:
        yield [SharedTimes(descriptor, number) for number in range(workers)]
    finally:
        os.close(descriptor)


def is_refused(clock: ServerClock, micros: int) -> bool:
    try:
        clock.check_time(micros, "start")
    except InvalidRequest:
        return True
    return False


def test_no_other_module_of_the_server_reads_the_wall_clock() -> None:
    root = Path(streaming_server.__file__).parent
    found = [
        f"{path.relative_to(root)}:{node.lineno}"
        for path in sorted(root.rglob("*.py"))
        if path.name != "clock.py" or path.parent != root
        for node in ast.walk(ast.parse(path.read_text()))
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name | ast.Attribute)
            and (node.value.id if isinstance(node.value, ast.Name) else node.value.attr, node.attr) in WALL_CLOCKS
        )
        or (isinstance(node, ast.ImportFrom) and node.module == "time")
    ]
    assert found == []


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(-2, 3)), max_size=40), st.lists(st.integers(-3, 3), max_size=3)
)
def test_no_process_is_behind_a_time_with_which_another_one_has_answered(
    steps: list[tuple[int, int]], skews: list[int]
) -> None:
    machines = [FakeClocks() for _ in range(3)]
    for machine, skew in zip(machines, skews, strict=False):
        machine.set_wall(skew * 0.3)
    last = 0
    with shared_times(3) as times:
        clocks = [ServerClock(each, shared=shared) for each, shared in zip(machines, times, strict=True)]
        for number, seconds in steps:
            machines[number].set_wall(seconds * 0.1)
            now = clocks[number].commit_micros()
            assert now >= last
            last = now
            if seconds == 3:
                clocks[number] = ServerClock(machines[number], clocks[number].store(), shared=times[number])


def test_all_processes_know_the_times_that_a_jump_has_made_doubtful() -> None:
    machine = FakeClocks()
    with shared_times(2) as times:
        clocks = [ServerClock(machine, shared=each) for each in times]
        machine.set_wall(2 * HOUR)
        within = machine.wall_micros - int(HOUR * 1e6)
        for _ in range(2 * 60 * 4 + 2):
            machine.pass_time(15)
            for clock in clocks:
                clock.commit_micros()
    assert [clock.status().offset_millis for clock in clocks] == [0, 0]
    assert [is_refused(clock, within + int(2 * HOUR * 1e6)) for clock in clocks] == [True, True]


def test_the_real_clocks_advance() -> None:
    machine = SystemClocks()
    clock = ServerClock(machine)
    before = clock.commit_micros(), clock.service_micros(), clock.monotonic(), machine.uptime_nanos()
    assert abs(before[0] - machine.wall_nanos() // 1000) < 1_000_000
    after = clock.commit_micros(), clock.service_micros(), clock.monotonic(), machine.uptime_nanos()
    assert all(late >= early for early, late in zip(before, after, strict=True))
    assert clock.status().jumps == 0


def test_commit_time_follows_the_wall_clock_over_small_steps(machine: FakeClocks, clock: ServerClock) -> None:
    machine.pass_time(10)
    machine.set_wall(STEP)
    assert error(clock, machine) == 0
    assert clock.status().jumps == 0


@pytest.mark.parametrize("jump", [2 * HOUR, 300 * DAY])
def test_commit_time_does_not_follow_a_jump_forward_and_service_time_knows_of_none(
    machine: FakeClocks, clock: ServerClock, jump: float
) -> None:
    before, served = clock.commit_micros(), clock.service_micros()
    machine.set_wall(jump)
    machine.pass_time(20)
    assert clock.commit_micros() - before == clock.service_micros() - served == 20_000_000
    assert clock.status().jumps == 1
    assert clock.status().offset_millis == jump * 1000
    machine.set_wall(-jump)
    machine.pass_time(1)
    assert error(clock, machine) == 0
    assert clock.status().jumps == 2
    assert clock.status().offset_millis == 0
    assert not is_refused(clock, before + 10_000_000)


def test_a_jump_is_logged_once(machine: FakeClocks, clock: ServerClock, caplog: pytest.LogCaptureFixture) -> None:
    machine.set_wall(2 * HOUR)
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            machine.pass_time(1)
            clock.commit_micros()
    assert len(caplog.records) == 1
    assert "2:00:00 forward" in caplog.text


def test_commit_time_follows_a_jump_forward_that_lasts(machine: FakeClocks, clock: ServerClock) -> None:
    machine.set_wall(300 * DAY)
    clock.commit_micros()
    for _ in range(24):
        assert error(clock, machine) == pytest.approx(-300 * DAY)
        in_doubt = clock.commit_micros() + 1
        machine.pass_time(HOUR)
    assert error(clock, machine) == 0
    # Commits before the jump was followed have earlier times than the current clock would give.
    assert is_refused(clock, machine.wall_micros - int(2 * HOUR * 1e6))
    machine.pass_time(1)
    assert not is_refused(clock, machine.wall_micros - 500_000)
    assert not is_refused(clock, in_doubt - int(2 * HOUR * 1e6))


def test_commit_time_follows_a_small_jump_forward_after_as_long_as_it_was_wide(
    machine: FakeClocks, clock: ServerClock
) -> None:
    machine.set_wall(600)
    assert error(clock, machine) == -600
    machine.pass_time(599)
    assert error(clock, machine) == -600
    machine.pass_time(1)
    assert error(clock, machine) == 0


def test_a_refused_time_is_named_as_people_write_it(machine: FakeClocks, clock: ServerClock) -> None:
    machine.set_wall(DAY)
    with pytest.raises(InvalidRequest) as caught:
        clock.check_time(machine.wall_micros - 60_000_000, "the start")
    assert "the start is at 2023-11-15T22:12:20Z, but from 2023-11-14T22:13:20Z to 2023-11-15T22:13:20Z" in str(
        caught.value
    )


def test_commit_time_never_goes_back_and_meets_the_wall_clock_again(machine: FakeClocks, clock: ServerClock) -> None:
    before = clock.commit_micros()
    machine.set_wall(-HOUR)
    machine.pass_time(10)
    assert clock.commit_micros() - before == 5_000_000
    assert clock.status().jumps == 1
    assert not is_refused(clock, before)
    assert is_refused(clock, before + 1)
    assert is_refused(clock, before + 10**12), "all that is committed from now on could be meant"
    machine.pass_time(2 * HOUR)
    assert error(clock, machine) == 0
    machine.pass_time(HOUR)
    assert not is_refused(clock, machine.wall_micros)
    assert is_refused(clock, before + 1_000_000)


def test_while_the_machine_sleeps_commit_time_goes_on_and_service_time_does_not(
    machine: FakeClocks, clock: ServerClock
) -> None:
    served = clock.service_micros()
    machine.suspend(HOUR)
    assert error(clock, machine) == 0
    assert clock.service_micros() == served
    assert clock.status().jumps == 0


def test_a_restart_advances_service_time_by_nothing(machine: FakeClocks, clock: ServerClock) -> None:
    machine.pass_time(100)
    stored = clock.store()
    machine.pass_time(DAY)
    machine.set_wall(2 * HOUR)
    again = clock_of(machine, stored)
    assert again.service_micros() == 100_000_000
    machine.pass_time(5)
    assert again.service_micros() == 105_000_000


def test_a_jump_while_no_server_ran_is_noticed_unless_the_machine_was_off() -> None:
    machine = FakeClocks()
    stored = clock_of(machine).store()
    machine.pass_time(DAY)
    assert error(clock_of(machine, stored), machine) == 0, "nobody has touched the clock"
    machine.set_wall(2 * HOUR)
    again = clock_of(machine, stored)
    assert error(again, machine) == -2 * HOUR
    assert again.status().jumps == 1
    machine.reboot(away=3 * DAY)
    assert error(clock_of(machine, stored), machine) == 0


def test_a_wall_clock_that_is_back_after_a_reboot_takes_commit_time_not_back(
    machine: FakeClocks, clock: ServerClock
) -> None:
    machine.pass_time(50)
    stored = clock.store()
    machine.reboot()
    machine.set_wall(-300 * DAY)
    again = clock_of(machine, stored)
    assert again.commit_micros() == stored.commit // 1000
    assert again.status().jumps == 1
    assert is_refused(again, stored.commit // 1000 + 1)
    stored = again.store()
    machine.reboot()
    machine.set_wall(301 * DAY)
    corrected = clock_of(machine, stored)
    assert error(corrected, machine) == 0


def test_a_jump_back_during_a_restart_is_in_doubt_until_it_is_over(machine: FakeClocks, clock: ServerClock) -> None:
    machine.set_wall(-HOUR)
    machine.pass_time(10)
    again = clock_of(machine, clock.store())
    before = again.commit_micros()
    assert is_refused(again, before)
    machine.set_wall(HOUR)
    assert error(again, machine) == 0
    assert is_refused(again, before)
    assert not is_refused(again, before + int(HOUR * 1e6))


def test_what_is_stored_is_due_when_a_restart_would_come_to_another_commit_time(
    machine: FakeClocks, clock: ServerClock
) -> None:
    clock.store()
    machine.pass_time(DAY)
    machine.set_wall(10)
    assert not clock.has_stepped, "it would follow this step, too"
    machine.set_wall(2 * HOUR)
    assert clock.has_stepped, "it would not know that commit time has followed the first step"
    clock.store()
    machine.pass_time(HOUR)
    assert not clock.has_stepped
    machine.pass_time(HOUR)
    assert clock.has_stepped, "the jump was followed"
    clock.store()
    machine.set_wall(-DAY)
    machine.pass_time(HOUR)
    assert not clock.has_stepped


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["pass", "set", "suspend", "restart", "crash", "reboot"]),
            st.floats(-400 * DAY, 400 * DAY),
        ),
        max_size=30,
    )
)
def test_no_clock_of_the_server_goes_back_whatever_happens(events: list[tuple[str, float]]) -> None:
    machine = FakeClocks()
    clock = clock_of(machine)
    commit, served, lived = clock.commit_micros(), clock.service_micros(), 0.0
    for event, seconds in events:
        stored = clock.store()
        match event:
            case "set":
                machine.set_wall(seconds)
            case "pass":
                machine.pass_time(abs(seconds))
                lived += abs(seconds)
            case "suspend":
                machine.suspend(abs(seconds))
            case "reboot":
                machine.reboot(abs(seconds))
                clock = clock_of(machine, stored)
            case _:
                clock = clock_of(machine, stored)
        assert clock.commit_micros() >= commit
        assert clock.service_micros() >= served
        assert clock.service_micros() == pytest.approx(lived * 1e6, abs=100)
        commit, served = clock.commit_micros(), clock.service_micros()


def test_no_answered_time_is_after_that_of_a_server_started_after_a_jump_back_and_a_crash() -> None:
    machine = FakeClocks()
    clock = clock_of(machine)
    stored = clock.store()
    machine.pass_time(10)
    answered = clock.commit_micros()
    machine.set_wall(-HOUR)
    assert clock_of(machine, stored).commit_micros() >= answered


@given(st.integers(0, 2**60), st.integers(0, 2**50), st.integers(0, 2**60), st.integers(0, 2**50))
def test_commit_time_takes_no_step_over_the_bound(commit: int, elapsed: int, wall: int, max_step: int) -> None:
    after = next_commit_time(commit, elapsed, wall, max_step)
    assert commit + elapsed // 2 <= after <= commit + elapsed + max_step
