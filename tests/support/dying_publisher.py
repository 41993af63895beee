"""Publishes a table, and dies as after SIGKILL at a step of the file system below the location.

Run as `python -m tests.support.dying_publisher URL TABLE FORMAT LOCATION STEP OPTIONS`; the first step has number 0,
and the options are those of `PublishOptions` as JSON. Exits with 0 if there was no such step.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

from aio_client import connect
from scankv.lake.formats import open_lake_table
from scankv.lake.publisher import PublishOptions, publish
from tests.support.forked import run_forked

if TYPE_CHECKING:
    from scankv.lake.lake_table import LakeTable

_EVENTS: Final = ("open", "os.link", "os.mkdir", "os.remove")
"""What Python reports before it does it: files that are opened to be written or synced, linked or deleted."""


def publish_and_die(url: str, table: str, format_: str, location: str, step: int, **options: Any) -> bool:  # fields
    """Publishes in another process, which dies before a step. Returns whether there was such a step."""
    command = (sys.executable, "-m", __name__, url, table, format_, location, str(step), json.dumps(options))
    done = run_forked(*command, timeout=600)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    return done.returncode != 0


def _die_at(step: int, location: str) -> None:
    """Makes this process die before a step at a location."""
    left = step

    def on_event(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in _EVENTS and str(arguments[-1 if event == "os.link" else 0]).startswith(location):
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    sys.addaudithook(on_event)


async def _publish(url: str, table: str, lake: LakeTable, options: PublishOptions) -> None:
    async with connect(url) as client:
        await publish(client, table, lake, options)


def main(url: str, table: str, format_: str, location: str, step: str, options: str) -> None:
    """Publishes, and dies."""
    lake = open_lake_table(location, format_)
    _die_at(int(step), location)
    asyncio.run(_publish(url, table, lake, PublishOptions(**json.loads(options))))


if __name__ == "__main__":
    main(*sys.argv[1:])
