"""Refuses calls while the process takes nearly as much memory as it may have, because the kernel would kill it."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import sys
from typing import TYPE_CHECKING, Final

from scankv.model.errors import ServerBusy

if TYPE_CHECKING:
    from collections.abc import Callable

CHECK_SECONDS: Final = 0.05
_TRIM_SHARE: Final = 0.5
_HIGH_SHARE: Final = 0.7
_LOW_SHARE: Final = 0.6
_TRIM_SECONDS: Final = 0.5
_LOG_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 0.5
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

_log = logging.getLogger(__name__)


class MemoryPressure:
    """Compares the memory of the process with its limit. Bound to the event loop.

    The budgets of requests, answers and caches cannot add up to the memory of a process, because RocksDB, Arrow and the
    allocator take more: glibc keeps freed memory, which has tripled the memory of a server under load. So this is the
    last bound. Above half of the limit, the allocator returns its free memory to the system. Above seven tenths, calls
    are refused until the memory falls below six tenths. What is left is for calls that run already.

    Args:
        limit_bytes: The memory limit. None: unknown, so nothing is refused.
        used_bytes: Returns the memory of the process that the kernel cannot take back.

    Attributes:
        is_high: Whether calls are refused.
        refused: The number of refused calls since the start.
    """

    def __init__(self, limit_bytes: int | None, used_bytes: Callable[[], int | None] | None = None) -> None:
        self.is_high = False
        self.refused = 0
        self._limit = limit_bytes
        self._used_bytes = used_bytes or anonymous_bytes
        self._used = 0
        self._trimmed_at = -_TRIM_SECONDS
        self._logged_at = -_LOG_SECONDS

    async def check(self) -> None:
        """Compares the memory with the limit. Call it every `CHECK_SECONDS`."""
        if self._limit is None or (used := self._used_bytes()) is None:
            return
        now = asyncio.get_running_loop().time()
        if used > _TRIM_SHARE * self._limit and now - self._trimmed_at >= _TRIM_SECONDS:
            await asyncio.to_thread(_return_free_memory)
            used = self._used_bytes() or used
            self._trimmed_at = asyncio.get_running_loop().time()
        self._used = used
        was_high, self.is_high = self.is_high, used > (_LOW_SHARE if self.is_high else _HIGH_SHARE) * self._limit
        # The memory may rise and fall several times a second.
        if self.is_high and not was_high and now - self._logged_at >= _LOG_SECONDS:
            self._logged_at = now
            _log.warning(
                "the server takes %d of %d MiB of memory, so it refuses calls until it takes less: raise the memory "
                "limit, or lower the settings for memory",
                used >> 20,
                self._limit >> 20,
            )

    def refusal(self) -> ServerBusy:
        """Returns the error for a call that is refused, and counts it."""
        self.refused += 1
        return ServerBusy(
            f"the server takes {self._used >> 20:,} MiB of memory, and may have {(self._limit or 0) >> 20:,} MiB: try "
            "again",
            retry_after=_RETRY_SECONDS,
        )


def anonymous_bytes() -> int | None:
    """Returns the resident memory of this process without files, which the kernel can take back. None: unknown."""
    try:
        # Twenty times a second, so without what a Path and text cost.
        with open("/proc/self/statm", "rb", buffering=0) as file:
            _, resident, shared, *_ = file.read().split()
    except OSError:
        return None
    return (int(resident) - int(shared)) * _PAGE_BYTES


def _return_free_memory() -> None:
    # Other C libraries have no malloc_trim.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
