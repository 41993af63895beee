"""A measured server in which deleted rows remain as tombstones, as they do anywhere until a compaction finds them.

Run as `measured_server`.
"""

from __future__ import annotations

import asyncio
import sys
import time

from streaming_server.engine.tasks.loop_turns import LoopTurns
from streaming_server.storage.rocks import store
from tests.integration.server import measured_server

if __name__ == "__main__":
    store._FLUSHED_DELETIONS = sys.maxsize
    measured = LoopTurns(time.thread_time)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(measured)) as runner:
        runner.run(measured_server.main(measured, *sys.argv[1:]))
