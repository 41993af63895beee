"""Finds out whether the host of a virtual machine takes memory away that the machine does not use."""

from __future__ import annotations

import time
from typing import Final

import numpy as np

_BYTES: Final = 1 << 20
"""Too little for huge pages, which hosts leave alone."""
_SECONDS: Final = 0.002
"""An access to all memory takes a tenth of this, and 10 ms and more after the memory was taken away."""
_UNUSED_SECONDS: Final = 1


class UnusedMemory:
    """Memory that nothing uses between two checks.

    Some hosts take away what a virtual machine did not use for some 50 ms, and give it back at the next access. The
    wait for the host, at up to 110 µs for each page of 4 KiB, counts as processor time of the machine.
    """

    def __init__(self) -> None:
        self._bytes = np.ones(_BYTES, np.uint8)
        self._checked = time.monotonic()
        self._was_taken_away = False

    def is_taken_away(self) -> bool:
        """Returns whether an access after some time takes long, as of the last time when there was such an access."""
        if time.monotonic() - self._checked > _UNUSED_SECONDS:
            first, second = self._access(), self._access()
            self._was_taken_away = first - second > _SECONDS
            self._checked = time.monotonic()
        return self._was_taken_away

    def _access(self) -> float:
        began = time.thread_time()
        self._bytes += 1
        return time.thread_time() - began
