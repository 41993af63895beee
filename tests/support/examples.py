"""How many examples Hypothesis draws: few in each run of the tests, and many more in `make soak`."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import settings

__all__ = ["FACTOR", "examples"]

FACTOR: Final = int(os.environ.get("SCANKV_EXAMPLES_FACTOR", "1"))
"""How many times as many examples are drawn as a test asks for."""


def examples(number: int) -> settings:
    """Settings of a test that draws so many examples: each run draws others, and `make soak` draws many more."""
    return settings(max_examples=number * FACTOR)
