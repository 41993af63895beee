from __future__ import annotations

import pytest

from scankv.cli.show import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (4.21, "4.2 s"),
        (59.44, "59.4 s"),
        (59.99, "1 min"),
        (60, "1 min"),
        (200.9, "3 min 21 s"),
        (3600, "1 h"),
        (7505, "2 h 5 min"),
        (604_800, "7 d"),
        (609_000, "7 d 1 h"),
        (-7193.3, "-1 h 59 min"),
    ],
)
def test_a_time_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
