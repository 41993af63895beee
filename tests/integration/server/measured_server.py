"""A server that measures the turns of its event loop in processor time, which depends little on other processes.

Run as `python -m tests.integration.server.measured_server DIRECTORY SETTING=VALUE ...`. It prints its address, and
serves until standard input ends.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from pathlib import Path

from streaming_server.config import ServerConfig
from streaming_server.engine.tasks.loop_turns import LoopTurns
from streaming_server.server import Server


async def main(turns: LoopTurns, directory: str, *settings: str) -> None:
    """Serves until standard input ends."""
    pairs = (each.partition("=") for each in settings)
    values = {name: int(value) if value.isdigit() else float(value) for name, _, value in pairs}
    async with Server(ServerConfig(data=Path(directory), port=0, **values), loop_turns=turns) as server:  # type: ignore[arg-type]
        gc.freeze()  # as the shipped server
        sys.stdout.write(f"{server.address}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    measured = LoopTurns(time.thread_time)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(measured)) as runner:
        runner.run(main(measured, *sys.argv[1:]))
