"""Bootstraps a table from a location, and kills its own process at a moment.

Run as `python -m tests.support.killed_bootstrap URL TABLE SOURCE MOMENT`. The moment is a number of rows that
the server has, `commit`, when the server makes the table, `made`, when the table exists, or `never`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from aio_client import sync

if TYPE_CHECKING:
    from aio_client import BootstrapProgress


def main(url: str, table: str, source: str, moment: str) -> None:
    """Bootstraps a table, and kills its own process."""

    answers = 0

    def die_in_time(progress: BootstrapProgress) -> None:
        nonlocal answers
        is_made = progress.rows_in_table is not None
        answers += progress.rows == progress.total_rows
        if (
            (moment == "made" and is_made)
            # The last request was answered, and then a commit that was not done.
            or (moment == "commit" and answers == 2 and not is_made)
            or (moment.isdecimal() and progress.rows >= int(moment))
        ):
            os.kill(os.getpid(), signal.SIGKILL)

    # Half of this time, each call waits for the commit.
    with sync.connect(url, attempt_timeout=0.2 if moment == "commit" else 10.0) as client:
        client.bootstrap(table, source, primary_key=["id"], on_progress=die_in_time)


if __name__ == "__main__":
    main(*sys.argv[1:])
