"""Deletes of few keys each that follow one another in key order, as those of a queue do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_DUE_KEYS: Final = 128


class DeletedRun:
    """Counts keys that were deleted one after another, in ascending or in descending order.

    Each deleted key leaves a tombstone. A read that begins before the deleted keys passes these tombstones one by one,
    but passes the tombstone of a range in one step.

    Attributes:
        first: The least key.
        last: The greatest key.
        count: How many keys were deleted.
    """

    def __init__(self) -> None:
        self.first = self.last = b""
        self.count = 0

    @property
    def is_due(self) -> bool:
        """Whether the keys are so many that their range should be deleted, if no row lies in it."""
        return self.count >= _DUE_KEYS

    def add(self, keys: Sequence[bytes]) -> None:
        """Adds ascending keys. Begins again if they do not lie on one side of the others."""
        if self.count and keys[0] > self.last:
            self.last = keys[-1]
        elif self.count and keys[-1] < self.first:
            self.first = keys[0]
        else:
            self.first, self.last, self.count = keys[0], keys[-1], 0
        self.count += len(keys)

    def clear(self) -> None:
        """Begins again."""
        self.count = 0
