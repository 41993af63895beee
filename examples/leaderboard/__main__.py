"""`python -m examples.leaderboard`: a server, the flights of 2013 departing hour by hour, two jobs, and a page."""

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
    "server.headless": "true",  # we open the browser ourselves, without being asked for an e-mail address
    "server.fileWatcherType": "none",
    "browser.gatherUsageStats": "false",  # nothing leaves the machine
    "client.toolbarMode": "minimal",
    "logger.level": "error",
    # No colour of a theme: any would make it a light one, whatever the reader's system prefers.
}


def main() -> int:
    """Runs until Ctrl-C; returns the exit code."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ExitStack() as stack:
            url = options.url or stack.enter_context(_own_server())
            client = stack.enter_context(connect(url))
            print(f"server  {url}\nloading the flights before {options.start} ...", flush=True)
            page, address = stack.enter_context(_page(url, options.port))
            replay = Replay(client, options.start)
            create_totals(client)
            jobs = [stack.enter_context(_job(name, url)) for name in JOBS]
            _wait_until_served(address, page)
            print(f"page    {address}\nCtrl-C stops all", flush=True)
            if not options.no_browser:
                webbrowser.open(address)
            _depart(replay, options.hours_per_second, page, jobs)
    except ScanKvError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.leaderboard", description=__doc__)
    parser.add_argument("--url", help="a server to use; without it, one is started, and its data removed at the end")
    parser.add_argument("--port", type=int, default=8501, help="of the page; 0 for a free one (default: %(default)s)")
    parser.add_argument("--start", default="2013-07-01", help="the day from which flights depart live (%(default)s)")
    parser.add_argument(
        "--hours-per-second", type=float, default=1.0, help="how fast 2013 passes; 0 stops it (default: %(default)s)"
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the address of the page")
    return parser.parse_args()


def _depart(
    replay: Replay,
    hours_per_second: float,
    page: subprocess.Popen[bytes],
    jobs: Sequence[subprocess.Popen[bytes]],
) -> None:
    """Lets one hour after the other depart at a steady pace, then waits until the page or a job ends."""
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
    raise Unavailable("the page or a job has ended; what it said stands above")


@contextmanager
def _own_server() -> Iterator[str]:
    with (
        tempfile.TemporaryDirectory(prefix="scankv-leaderboard-") as directory,
        ServerProcess(Path(directory) / "data") as server,
    ):
        yield server.url


@contextmanager
def _job(name: str, url: str) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a job in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.leaderboard.job", name, url], cwd=ROOT, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()  # the next one goes on with what this one has committed
        process.wait()


@contextmanager
def _page(url: str, port: int) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Starts the page in a process of its own; gives that, and the address at which it will answer."""
    port = port or _free_port()
    address = f"http://127.0.0.1:{port}"
    arguments = [f"--{name}={value}" for name, value in {**PAGE_OPTIONS, "server.port": port}.items()]
    process = subprocess.Popen(
        [sys.executable, "-m", "streamlit", "run", str(PAGE), *arguments, "--", url],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches this process alone, which stops the others in order
    )
    try:
        yield process, address
    finally:
        process.kill()  # it holds nothing that could be lost
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
    raise Unavailable('the page did not start; is Streamlit there? pip install -e ".[demo,dashboard]"')


if __name__ == "__main__":
    sys.exit(main())
