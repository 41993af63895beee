"""The faults of `scankv.testing` as values, and the faults drawn from a seed."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from aio_client import UsageError
from aio_client.testing import Fault
from aio_client.testing._faults import RandomFaults

DRAWN = RandomFaults(7, ("cut", "reset", "stall"), ("to_client", "to_server"), (10, 1000))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "explode"}, "one of cut, reset, stall, slow, half_close, not 'explode'"),
        ({"kind": "cut", "after_bytes": -1}, "after_bytes .* not -1"),
        ({"kind": "cut", "after_bytes": 1.5}, "after_bytes"),
        ({"kind": "cut", "direction": "sideways"}, "direction"),
        ({"kind": "slow"}, "bytes_per_second"),
        ({"kind": "slow", "bytes_per_second": 0}, "bytes_per_second"),
        ({"kind": "cut", "bytes_per_second": 10}, "bytes_per_second"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Fault(**values)


def test_a_fault_travels_between_processes() -> None:
    fault = Fault("slow", 10, "to_server", bytes_per_second=5)
    assert pickle.loads(pickle.dumps(fault)) == fault


def test_a_seed_draws_the_same_fault_for_a_connection_whatever_was_drawn_before() -> None:
    forwards = [DRAWN.of(number) for number in range(1, 50)]
    backwards = [DRAWN.of(number) for number in reversed(range(1, 50))][::-1]
    assert forwards == backwards
    # Fixed values: a seed that was printed yesterday must draw the same faults today.
    assert forwards[0] == Fault("cut", 575, "to_client")


def test_a_seed_draws_every_kind_and_direction_within_the_bounds() -> None:
    faults = [DRAWN.of(number) for number in range(1, 200)]
    assert {fault.kind for fault in faults} == set(DRAWN.kinds)
    assert {fault.direction for fault in faults} == set(DRAWN.directions)
    assert all(10 <= fault.after_bytes <= 1000 for fault in faults)
    assert len({fault.after_bytes for fault in faults}) > 100


@pytest.mark.parametrize(
    "values",
    [{"kinds": ()}, {"directions": ()}, {"after_bytes": (5, 4)}, {"kinds": ("slow",)}, {"after_bytes": (-1, 4)}],
)
def test_nothing_is_drawn_from_what_cannot_be(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        RandomFaults(**{"seed": 1, "kinds": ("cut",), "directions": ("to_client",), "after_bytes": (0, 1), **values})
