"""Runs a temporary server in its own process."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from scankv.model.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_READY: Final = "scankv ready on "
_START_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 10.0


@asynccontextmanager
async def embedded_server(directory: Path) -> AsyncIterator[str]:
    """Runs `scankv serve` on a free port; yields its address, and stops the server at the end.

    Args:
        directory: An existing, writable directory for the data and the log of the server.

    Raises:
        Unavailable: The server did not start. The message has the end of its log.
    """
    log = directory / "server.log"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "scankv", "serve", "--data", str(directory / "data"), "--port", "0"),
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
        )
    try:
        yield await _address_of(process, log)
    finally:
        await _stop(process)


async def _address_of(process: asyncio.subprocess.Process, log: Path) -> str:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_START_SECONDS):
            line = (await process.stdout.readline()).decode()
    except TimeoutError:
        line = ""
    if not line.startswith(_READY):
        raise Unavailable(f"the embedded server did not start; the end of its log: {_end_of(log)}")
    return line.removeprefix(_READY).strip()


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _end_of(log: Path) -> str:
    return " ".join(log.read_text().split()[-40:])
