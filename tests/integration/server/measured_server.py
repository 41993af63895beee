"""A server that measures the turns of its event loop in processor time, which depends little on other processes.

Run as `python -m tests.integration.server.measured_server DIRECTORY SETTING=VALUE ...`. It prints its address, and
serves until standard input ends.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from streaming_server.config import ServerConfig
from streaming_server.engine.tasks.loop_turns import LoopTurns
from streaming_server.server import Server

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def measured(data: Path, *settings: str, program: str = __name__) -> Iterator[str]:
    """Runs the server, or another program that serves as this one does, and yields its address."""
    command = [sys.executable, "-m", program, str(data), *settings]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
            process.stdin.close()
            assert process.wait(60) == 0
        finally:
            process.kill()


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
    measuring = LoopTurns(time.thread_time)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(measuring)) as runner:
        runner.run(main(measuring, *sys.argv[1:]))
