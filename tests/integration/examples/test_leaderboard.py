"""The page of `python -m examples.leaderboard` in a real browser, with the server whose tables it shows."""

from __future__ import annotations

import itertools
import json
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import pyarrow.compute as pc
import pytest

from aio_client.sync import connect
from examples.leaderboard.replay import FLIGHTS
from examples.leaderboard.totals import CARRIER_DAY, PROGRESS, ROUTE
from scankv.demo.flights import KEY
from tests.support.server_process import ServerProcess
from tests.support.waiting import in_time, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selenium.webdriver import Chrome

    from aio_client.sync import Client, Table

ROOT = Path(__file__).parents[3]
INTERVAL = 2.0
WATCHES = 6
Cells = list[list[str]]


class Board:
    """The command, and the page that it serves.

    Attributes:
        server: The address of its server.
        page: That of its page.
        process: The command's process.
    """

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "examples.leaderboard", "--port", "0", "--no-browser", *arguments]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True, bufsize=1
        )
        self.server, self.page = self._said("server"), self._said("page")

    def _said(self, what: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(what):
                return line.split()[1]
        self.process.stdout.close()
        raise AssertionError(f"the command ended with {self.process.wait()} before it said its {what}")

    def interrupt(self) -> int:
        """Presses Ctrl-C; returns the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


@contextmanager
def running(*arguments: str) -> Iterator[Board]:
    board = Board(*arguments)
    try:
        yield board
    finally:
        if board.process.poll() is None:
            board.interrupt()
        assert board.process.stdout is not None
        board.process.stdout.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("leaderboard") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with connect(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def board(server: ServerProcess, browser: Chrome) -> Iterator[Board]:
    """Runs the page with the flights of the first days, and no further departures; only where a browser exists."""
    with running("--url", server.url, "--start", "2013-01-08", "--hours-per-second", "0") as board:
        yield board


TABLES = """
return [...document.querySelectorAll("table")].map(
    table => [...table.rows].map(row => [...row.cells].map(cell => cell.innerText.trim())))
"""


def tables_of(browser: Chrome) -> list[Cells]:
    """Returns the cells of the four tables without their headings; none while the page is being drawn."""
    tables: list[Cells] = browser.execute_script(TABLES)
    return [rows[1:] for rows in tables] if len(tables) == 4 else []


def shown(browser: Chrome) -> tuple[Cells, Cells, Cells, Cells]:
    """Routes with most flights, flights with the longest delays, carriers' latest days, routes with longest delays."""
    busiest, flights, days, delayed = wait_until(lambda: tables_of(browser), "the tables on the page")
    return busiest, flights, days, delayed


def busiest_routes(routes: Table) -> Cells:
    rows = routes.top_n(10, "flights").to_pylist()
    return [
        [str(rank), f"{row['origin']} → {row['dest']}", f"{row['flights']:,}", f"{row['mean_delay']:.1f} min"]
        for rank, row in enumerate(rows, 1)
    ]


def delayed_routes(routes: Table) -> Cells:
    rows = routes.top_n(10, "mean_delay", "flights >= 50").to_pylist()
    return [
        [str(rank), f"{row['origin']} → {row['dest']}", f"{row['mean_delay']:.1f}"] for rank, row in enumerate(rows, 1)
    ]


def delayed_flights(flights: Table) -> Cells:
    rows = flights.top_n(5, "dep_delay").to_pylist()
    return [
        [
            *(str(rank), f"{row['carrier']} {row['flight']}", f"{row['origin']} → {row['dest']}"),
            *(row["time_hour"][:10], f"{row['dep_delay'] / 60:.1f} h"),
        ]
        for rank, row in enumerate(rows, 1)
    ]


def delayed_days(days: Table) -> Cells:
    rows = days.top_n(5, "mean_arrival_delay", "arrivals >= 50").to_pylist()
    return [
        [str(rank), row["carrier"], row["day"], str(row["arrivals"]), f"{row['mean_arrival_delay']:.1f} min"]
        for rank, row in enumerate(rows, 1)
    ]


def more_flights(first: int) -> list[dict[str, Any]]:
    """Returns 1,000 flights of a new route. The table has one bucket, so the jobs receive them at once."""
    flight = {"origin": "EWR", "dest": "ZRH", "carrier": "LX", "time_hour": "2013-01-08T05:00:00Z", "dep_delay": -3}
    return [{**flight, "flight": number} for number in range(first, first + 1000)]


def keys_of(first: int) -> list[dict[str, Any]]:
    return [{name: flight[name] for name in KEY} for flight in more_flights(first)]


def counted(routes: Table, flights: Table) -> bool:
    """Returns whether the job has counted all flights."""
    return bool(pc.sum(routes.scan().to_arrow()["flights"]).as_py() == flights.count("dep_delay IS NOT NULL"))


@pytest.mark.breadth
def test_the_page_has_the_numbers_of_the_server(board: Board, browser: Chrome, client: Client) -> None:
    routes, days, flights = client.table(ROUTE), client.table(CARRIER_DAY), client.table(FLIGHTS)
    browser.get(board.page)
    wait_until(lambda: counted(routes, flights), "all flights in the totals")
    wait_until(lambda: [row[:4] for row in shown(browser)[0]] == busiest_routes(routes), "the busiest routes")
    wait_until(lambda: shown(browser)[3] == delayed_routes(routes), "the routes with the longest delays")
    wait_until(lambda: shown(browser)[2] == delayed_days(days), "the carriers' latest days")
    assert shown(browser)[1] == delayed_flights(flights)
    wait_until(lambda: browser.execute_script("return document.querySelector('canvas, svg.marks')"), "the chart")
    until = flights.top_n(1, "time_hour").to_pylist()[0]["time_hour"]
    age = (
        f"Departed until {until[:10]} {until[11:13]}:00 UTC: {flights.count():,} flights. "
        "Totals: departures up to date, arrivals up to date. Last change "
    )
    wait_until(lambda: age in text_of(browser), age)
    assert hosts_asked(browser) == {urlparse(board.page).netloc}
    assert [entry for entry in log_of(browser, "browser") if entry["level"] == "SEVERE"] == []


def text_of(browser: Chrome) -> str:
    text: str = browser.execute_script("return document.body.innerText")
    return text


@pytest.mark.soak
def test_a_job_that_falls_behind_is_told_with_the_flights_it_lacks(
    board: Board, browser: Chrome, client: Client
) -> None:
    progress, flights = client.table(PROGRESS), client.table(FLIGHTS)
    browser.get(board.page)
    shown(browser)
    wait_until(lambda: (progress.get("arrivals") or {}).get("flights") == flights.count(), "the job up to date")
    before, count = progress.get("arrivals"), flights.count()
    assert before is not None
    progress.upsert([{**before, "flights": count - 5000, "at": before["at"] + timedelta(seconds=1)}])
    warning = f"The totals are catching up: they lack up to 5,000 of {count:,} flights."
    wait_until(lambda: warning in text_of(browser), warning)
    assert "departures up to date, arrivals 5,000 flights behind" in text_of(browser)
    progress.upsert([before])
    wait_until(lambda: warning not in text_of(browser), "the warning gone")


STYLES = """
const shade = element => getComputedStyle(element).color.match(/[0-9.]+/g).slice(0, 3).reduce((a, b) => a + +b, 0) / 3
const aligned = [...document.querySelectorAll("td, th")].map(
    cell => [cell.innerText.trim(), getComputedStyle(cell).textAlign])
const page = document.querySelector(".stApp"), background = getComputedStyle(page).backgroundColor
return [background.match(/[0-9.]+/g).slice(0, 3).map(Number), shade(document.querySelector("td")), aligned]
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.breadth
def test_the_page_is_light_or_dark_as_the_system_is_and_numbers_stand_to_the_right(
    board: Board, browser: Chrome, scheme: str
) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(board.page)
    shown(browser)
    background, text, cells = browser.execute_script(STYLES)
    assert (max(background) < 60 and text > 200) if scheme == "dark" else (min(background) > 200 and text < 60)
    headings = {"rank", "flights", "mean delay", "delay", "arrivals", "minutes"}
    numbers = [align for value, align in cells if value in headings or re.fullmatch(r"-?[\d,.]+( min| h)?", value)]
    assert len(numbers) > 50
    assert set(numbers) == {"right"}
    assert {align for value, align in cells if value in ("route", "carrier") or "→" in value} <= {"left", "start"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def log_of(browser: Chrome, kind: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = browser.get_log(kind)  # type: ignore[no-untyped-call]
    return entries


def hosts_asked(browser: Chrome) -> set[str]:
    """Returns the hosts to which the page has sent requests, without those of the browser's own pages."""
    messages = [json.loads(entry["message"])["message"] for entry in log_of(browser, "performance")]
    urls = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    urls += [each["params"]["url"] for each in messages if each["method"] == "Network.webSocketCreated"]
    return {urlparse(url).netloc for url in urls if urlparse(url).scheme not in ("data", "blob", "chrome", "about")}


@pytest.mark.breadth
def test_a_write_is_on_the_page_within_one_interval_with_what_moved(
    board: Board, browser: Chrome, client: Client, server: ServerProcess
) -> None:
    routes, flights = client.table(ROUTE), client.table(FLIGHTS)
    browser.get(board.page)
    shown(browser)
    numbers, written = itertools.count(1000, 1000), list[dict[str, Any]]()

    def seconds_until_shown() -> float:
        number = next(numbers)
        flights.upsert(more_flights(10 * number))
        began = time.monotonic()
        written.extend(keys_of(10 * number))
        wait_until(lambda: shown(browser)[0][0][2] == f"{number:,}", f"{number:,} flights on the page")
        return time.monotonic() - began

    first = seconds_until_shown()
    busiest = shown(browser)[0]
    assert busiest[0][1] == "EWR → ZRH"
    assert [row[4] for row in busiest] == ["new", *["▼ down 1"] * 9]
    if first > INTERVAL:
        in_time(seconds_until_shown, INTERVAL)
    flights.delete(written)
    wait_until(lambda: [row[:4] for row in shown(browser)[0]] == busiest_routes(routes), "the route gone")

    server.kill()
    server.restart()
    flights.upsert(more_flights(1000))
    wait_until(lambda: shown(browser)[0][0][2] == "1,000", "the page of the restarted server")
    flights.delete(keys_of(1000))


@pytest.mark.soak
def test_while_nothing_is_written_all_tabs_together_have_one_call_a_watch_that_waits(
    board: Board, browser: Chrome, client: Client
) -> None:
    browser.get(board.page)
    browser.switch_to.new_window("tab")
    browser.get(board.page)
    shown(browser)

    def all_wait() -> bool:
        return client.stats().waiting_calls == WATCHES

    wait_until(all_wait, "all watches waiting")
    before, started = client.stats(), time.monotonic()
    wait_until(lambda: time.monotonic() > started + 2 * INTERVAL, "two intervals")
    after = client.stats()
    # One call per watch, if its wait of half a minute ends just now.
    wait_until(all_wait, "all watches waiting still")
    assert after.unchanged_results - before.unchanged_results <= WATCHES
    assert after.rows_scanned == before.rows_scanned
    assert after.computed_results == before.computed_results
    assert after.cached_results == before.cached_results
    assert after.scans_started == before.scans_started
    assert after.bytes_returned == before.bytes_returned
    browser.close()
    browser.switch_to.window(browser.window_handles[0])


@pytest.mark.soak
def test_one_command_starts_all_and_an_interrupt_stops_all(browser: Chrome) -> None:
    with running("--start", "2013-01-02", "--hours-per-second", "4") as board:
        browser.get(board.page)
        first = shown(browser)[0]
        wait_until(lambda: shown(browser)[0] != first, "flights departing")
        with connect(board.server) as client:
            assert {table.name for table in client.tables()} == {FLIGHTS, ROUTE, CARRIER_DAY, PROGRESS}
        browser.get("about:blank")
        assert board.interrupt() == 0
        for address in (board.server, urlparse(board.page).netloc):
            host, _, port = address.partition(":")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, int(port)), 5)
