"""How many files this process may have open, and how many it has."""

from __future__ import annotations

import os
import resource
from contextlib import suppress


def raise_file_limit() -> None:
    """Raises the limit as far as the system allows: an open bucket takes some ten descriptors, and each scan some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def file_limit() -> int:
    """The most files that may be open at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def open_files() -> int:
    """How many are open; 0 where the system does not say."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0
