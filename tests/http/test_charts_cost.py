"""What an idle server with its gateway spends on charts: sampling, and a page that refreshes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from aio_client import sync
from tests.http.conftest import SCORES
from tests.http.test_child import the_child
from tests.support.gateway import HttpCaller
from tests.support.monitoring import free_port
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.alone, pytest.mark.one_process]

SECONDS: Final = 15.0
MOST_SHARE: Final = 0.01
TABLES: Final = int(os.environ.get("SCANKV_TEST_CHART_TABLES", "10"))
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def cpu_seconds(*pids: int) -> float:
    """Returns the processor time of processes so far."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in fields) / _TICKS


def share_of_core(*pids: int, page: HttpCaller | None = None) -> float:
    """Returns the share of a core that processes use. If a page is given, its charts are loaded as a browser does."""
    began, before, loads = time.monotonic(), cpu_seconds(*pids), 0
    while (now := time.monotonic() - began) < SECONDS:
        if page is not None and now >= 5 * loads:
            loads += 1
            answer = page.get("/charts")
            assert answer.status == 200
            assert answer.body.count(b"<svg") > 5
        time.sleep(0.1)  # The measured processes are idle in the meantime.
    return (cpu_seconds(*pids) - before) / (time.monotonic() - began)


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_charts_of_an_idle_server_cost_less_than_a_hundredth_of_a_core(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    port = free_port()
    with ServerProcess(tmp_path / "data", "--http-port", str(port)) as server, sync.connect(server.url) as client:
        for number in range(TABLES):
            table = client.create_table(f"many.t{number}", SCORES, primary_key=["player"], buckets=1)
            table.upsert([{"player": "ann", "score": number}])
        gateway, page = the_child(server.process.pid), HttpCaller(port)
        wait_until(lambda: b"<svg" in page.get("/charts").body, "charts")
        os.kill(gateway, signal.SIGSTOP)
        without = share_of_core(server.process.pid)
        os.kill(gateway, signal.SIGCONT)
        wait_until(lambda: b"<svg" in page.get("/charts").body, "charts again")
        sampling = share_of_core(server.process.pid, gateway)
        both = share_of_core(server.process.pid, gateway, page=page)
    shares = {"without": without, "sampling": sampling, "page": both}
    record_property("shares", shares)
    assert both - without < MOST_SHARE, shares
