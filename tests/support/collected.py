"""Which tests has pytest collected, with those that a run leaves out?"""

from __future__ import annotations

from typing import Final

import pytest

COLLECTED: Final = pytest.StashKey[set[str]]()
"""In the configuration: the ids of all tests, with and without their parameters, and of their files."""


def ids_of(items: list[pytest.Item]) -> set[str]:
    """Returns the ids of some tests, with and without their parameters, and of their files."""
    ids = [item.nodeid for item in items]
    return {*ids, *(each.partition("[")[0] for each in ids), *(each.partition("::")[0] for each in ids)}
