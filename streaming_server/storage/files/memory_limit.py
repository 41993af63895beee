"""How much memory this process may take: that of its control group, or of the machine."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN_GROUPS: Final = Path("/proc/self/cgroup")


def memory_limit(control_groups: Path = _CONTROL_GROUPS, own_groups: Path = _OWN_GROUPS) -> int | None:
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
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            root, name = control_groups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = control_groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container, the path may be that of the host, and the mount begins at the group of the container.
        group = root / path.lstrip("/")
        for each in (group, *group.parents):
            if not each.is_relative_to(root):
                break
            with suppress(OSError, ValueError):
                limits.append(int((each / name).read_text()))
    return limits
