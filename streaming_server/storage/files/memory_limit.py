"""How much memory this process may take: that of its control group, or of the machine."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from streaming_server.storage.files.control_groups import CONTROL_GROUPS, OWN_GROUPS, group_directories

if TYPE_CHECKING:
    from pathlib import Path


def memory_limit(control_groups: Path = CONTROL_GROUPS, own_groups: Path = OWN_GROUPS) -> int | None:
    """Returns the least limit of memory for this process, in bytes. None: the system does not report any.

    A limit of a control group, such as that of a container, counts with the limits of the groups that contain it
    (cgroups(7)). Swap is not counted.

    Args:
        control_groups: Where the control groups are mounted, of version 1 or 2.
        own_groups: The file that names the groups of this process.
    """
    limits = [*_group_limits(control_groups, own_groups)]
    with suppress(ValueError, OSError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(limits, default=None)


def _group_limits(control_groups: Path, own_groups: Path) -> list[int]:
    limits = []
    for version, group in group_directories("memory", control_groups, own_groups):
        with suppress(OSError, ValueError):
            limits.append(int((group / ("memory.max" if version == 2 else "memory.limit_in_bytes")).read_text()))
    return limits
