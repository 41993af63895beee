"""`python -m examples.leaderboard`: runs a server, a replay of the flights of 2013, two jobs, and a page."""

from __future__ import annotations

import argparse
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import webbrowser
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from examples.leaderboard.replay import Replay
from examples.leaderboard.totals import JOBS, create_totals
from scankv import ScanKvError, Unavailable
from scankv.sync import connect
from scankv.testing import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAGE = Path(__file__).with_name("page.py")
ROOT = Path(__file__).parents[2]
PAGE_STARTS_WITHIN = 60.0  # seconds
PAGE_OPTIONS = {
    "server.address": "127.0.0.1",
    "server.headless": "true",  # avoids Streamlit's question for an e-mail address; we open the browser ourselves
    "server.fileWatcherType": "none",
    "browser.gatherUsageStats": "false",  # nothing leaves the machine
    "client.toolbarMode": "minimal",
    "logger.level": "error",
    # No theme colours: any of them would select the light theme, even if the system prefers a dark one.
}


def main() -> int:
    """Runs until Ctrl-C. Returns the exit code."""
    options = _parse_options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ExitStack() as stack:
            url = options.url or stack.enter_context(_start_server())
            client = stack.enter_context(connect(url))
            print(f"server  {url}\nloading the flights before {options.start} ...", flush=True)
            page, address = stack.enter_context(_start_page(url, options.port))
            replay = Replay(client, options.start)
            create_totals(client)
            jobs = [stack.enter_context(_start_job(name, url)) for name in JOBS]
            _wait_until_served(address, page)
            print(f"page    {address}\nCtrl-C stops everything", flush=True)
            if not options.no_browser:
                webbrowser.open(address)
            _replay(replay, options.hours_per_second, page, jobs)
    except ScanKvError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.leaderboard", description=__doc__)
    parser.add_argument("--url", help="use this server (default: start one, and remove its data at the end)")
    parser.add_argument("--port", type=int, default=8501, help="port of the page; 0: a free one (default: %(default)s)")
    parser.add_argument("--start", default="2013-07-01", help="first day of the replay (default: %(default)s)")
    parser.add_argument(
        "--hours-per-second", type=float, default=1.0, help="speed of the replay; 0: no replay (default: %(default)s)"
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the address of the page")
    return parser.parse_args()


def _replay(
    replay: Replay,
    hours_per_second: float,
    page: subprocess.Popen[bytes],
    jobs: Sequence[subprocess.Popen[bytes]],
) -> None:
    """Replays one hour after the other at a steady pace, then waits until the page or a job ends."""
    due = time.monotonic()
    more = hours_per_second > 0
    while all(job.poll() is None for job in jobs):
        more = more and replay.next_hour()
        due = due + 1 / hours_per_second if more else time.monotonic() + 1
        try:
            page.wait(timeout=max(0.0, due - time.monotonic()))
        except subprocess.TimeoutExpired:
            continue
        break
    raise Unavailable("the page or a job has ended; see its output above")


@contextmanager
def _start_server() -> Iterator[str]:
    with (
        tempfile.TemporaryDirectory(prefix="scankv-leaderboard-") as directory,
        ServerProcess(Path(directory) / "data") as server,
    ):
        yield server.url


@contextmanager
def _start_job(name: str, url: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a job in its own process during the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.leaderboard.job", name, url], cwd=ROOT, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()  # safe, since the next process continues from the last commit
        process.wait()


@contextmanager
def _start_page(url: str, port: int) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Runs the page in its own process during the block. Yields the process and the address of the page."""
    port = port or _free_port()
    address = f"http://127.0.0.1:{port}"
    arguments = [f"--{name}={value}" for name, value in {**PAGE_OPTIONS, "server.port": port}.items()]
    process = subprocess.Popen(
        [sys.executable, "-m", "streamlit", "run", str(PAGE), *arguments, "--", url],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # so that Ctrl-C reaches only this process, which then stops the others
    )
    try:
        yield process, address
    finally:
        process.kill()  # safe, since the page has no state
        process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def _wait_until_served(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PAGE_STARTS_WITHIN
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{address}/_stcore/health", timeout=1):
                return
        except OSError:
            time.sleep(0.05)
    raise Unavailable('the page did not start; if Streamlit is missing: pip install -e ".[demo,dashboard]"')


if __name__ == "__main__":
    sys.exit(main())
