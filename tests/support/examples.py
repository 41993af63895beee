"""Sets how many examples Hypothesis draws: few in a normal run, many more in `make soak`."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import settings

__all__ = ["FACTOR", "examples"]

FACTOR: Final = int(os.environ.get("SCANKV_EXAMPLES_FACTOR", "1"))
"""The factor by which to multiply the number of examples."""


def examples(number: int) -> settings:
    """Returns settings with the given number of examples. Each run draws others, and `make soak` draws many more."""
    return settings(max_examples=number * FACTOR)
