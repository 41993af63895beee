"""A control group that limits the memory of a server process, where the system lets the tests make one."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path("/sys/fs/cgroup")


@contextmanager
def limited_memory(limit_bytes: int) -> Iterator[tuple[str, ...]]:
    """Yields a wrapper for `ServerProcess` that limits its memory, or an empty one where that is impossible.

    Within the group, the kernel kills a process that takes more. Elsewhere, compare its peak with the limit.
    """
    group = _make_group(limit_bytes)
    if group is None:
        yield ()
        return
    try:
        yield ("sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$0" "$@"')
    finally:
        for _ in range(100):
            with suppress(OSError):
                group.rmdir()
                break
            # The kernel removes a killed process from its group some time after it has ended.
            time.sleep(0.05)


def _make_group(limit_bytes: int) -> Path | None:
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):
                root, name = (_ROOT / "memory", "memory.limit_in_bytes") if controllers else (_ROOT, "memory.max")
                group = root / path.lstrip("/") / f"scankv-test-{os.getpid()}"
                with suppress(OSError):
                    group.mkdir()
                    try:
                        (group / name).write_text(str(limit_bytes))
                    except OSError:
                        group.rmdir()
                        raise
                    return group
    return None
