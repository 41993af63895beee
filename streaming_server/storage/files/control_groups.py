"""Which control groups this process belongs to, and where their limits are (cgroups(7))."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")
OWN_GROUPS: Final = Path("/proc/self/cgroup")


def group_directories(
    controller: str, control_groups: Path = CONTROL_GROUPS, own_groups: Path = OWN_GROUPS
) -> Iterator[tuple[int, Path]]:
    """Yields the version and the directory of each group of this process, and of the groups that contain it.

    Args:
        controller: The controller in version 1, such as `memory`; in version 2, all are in one group.
        control_groups: Where the control groups are mounted, of version 1 or 2.
        own_groups: The file that names the groups of this process.
    """
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            version, root = 2, control_groups
        elif controller in controllers.split(","):
            version, root = 1, control_groups / controller
        else:
            continue
        # In a container, the path may be that of the host, and the mount begins at the group of the container.
        group = root / path.lstrip("/")
        for each in (group, *group.parents):
            if not each.is_relative_to(root):
                break
            yield version, each
