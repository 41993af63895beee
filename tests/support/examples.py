"""Sets how many examples and seeds a test gets: few in a normal run, many more in `make soak`."""

from __future__ import annotations

import os
from typing import Final

import pytest
from hypothesis import settings

__all__ = ["FACTOR", "examples", "seeds"]

FACTOR: Final = int(os.environ.get("SCANKV_EXAMPLES_FACTOR", "1"))
"""The factor by which to multiply the number of examples."""


def examples(number: int) -> settings:
    """Returns settings with the given number of examples. Each run draws others, and `make soak` draws many more."""
    return settings(max_examples=number * FACTOR)


def seeds(number: int) -> pytest.MarkDecorator:
    """Gives a test its parameter `seed`, with the given number of values. `make soak` gives many more."""
    return pytest.mark.parametrize(
        "seed", [pytest.param(seed, marks=pytest.mark.seeds) for seed in range(number * FACTOR)]
    )
