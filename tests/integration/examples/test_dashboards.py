"""The dashboards of `examples/dashboards`: each has fewer than 40 lines, runs, and shows what is written.

Streamlit runs its page in this process, and Jupyter its notebook in a kernel. Grafana is no Python package. So its
queries run as its data source runs them: a base address, the address of the panel, and selectors of the JSON answer.
"""

from __future__ import annotations

import json
import queue
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
import pytest
import streamlit as st
import yaml
from jupyter_client.manager import KernelManager
from streamlit.testing.v1 import AppTest

from aio_client.sync import connect
from tests.support.gateway import GatewayProcess
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyter_client.blocking.client import BlockingKernelClient

    from aio_client.sync import Table

DASHBOARDS = Path(__file__).parents[3] / "examples" / "dashboards"
GRAFANA = DASHBOARDS / "grafana"
SCHEMA = pa.schema(
    [pa.field("player", pa.string(), nullable=False), ("score", pa.int64()), ("league", pa.string())],
)
PLAYERS = [
    {"player": "ann", "score": 31, "league": "a"},
    {"player": "bob", "score": 27, "league": "b"},
    {"player": "cem", "score": 44, "league": "a"},
]
NEW = {"player": "dan", "score": 50, "league": "b"}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    """A server with the table of the quickstart, which clients find by themselves."""
    with ServerProcess(tmp_path / "data") as server, connect(server.url) as client:
        client.create_table("game.scores", SCHEMA, primary_key=["player"]).upsert(PLAYERS)
        monkeypatch.setenv("SCANKV_URL", server.url)
        yield server


@pytest.fixture
def scores(server: ServerProcess) -> Iterator[Table]:
    with connect(server.url) as client:
        yield client.table("game.scores")


def cells() -> list[dict[str, Any]]:
    return [
        cell for cell in json.loads((DASHBOARDS / "live.ipynb").read_text())["cells"] if cell["cell_type"] == "code"
    ]


def test_each_dashboard_has_fewer_than_40_lines() -> None:
    assert len((DASHBOARDS / "streamlit_page.py").read_text().splitlines()) < 40
    assert len((GRAFANA / "dashboard.json").read_text().splitlines()) < 40
    assert len((GRAFANA / "datasource.yaml").read_text().splitlines()) < 40
    assert sum(len(cell["source"]) for cell in cells()) < 40


@pytest.mark.breadth
def test_the_streamlit_page_shows_the_players_and_what_is_written(scores: Table) -> None:
    page = AppTest.from_file(str(DASHBOARDS / "streamlit_page.py"), default_timeout=60)

    def players() -> list[str]:
        page.run()
        assert not page.exception
        assert not page.error
        return list(page.dataframe[0].value["player"]) if page.dataframe else []

    try:
        wait_until(lambda: players() == ["cem", "ann", "bob"], "the players by score")
        scores.upsert([NEW])
        wait_until(lambda: players() == ["dan", "cem", "ann", "bob"], "the new player")
    finally:
        st.cache_resource.clear()


def wait_for_message(kernel: BlockingKernelClient, kind: str) -> dict[str, Any]:
    """Returns the next message of a kind that the kernel publishes. Fails if a cell fails."""
    while True:
        try:
            message: dict[str, Any] = kernel.get_iopub_msg(timeout=60)
        except queue.Empty:
            raise AssertionError(f"the kernel published no {kind}") from None
        if message["msg_type"] == kind:
            return message["content"]  # type: ignore[no-any-return]
        assert message["msg_type"] != "error", message["content"]["evalue"]


@pytest.mark.breadth
def test_the_notebook_shows_the_players_and_what_is_written(scores: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPLBACKEND", raising=False)  # Streamlit sets it.
    directory = TemporaryDirectory()  # its path is short, as that of a socket must be
    manager = KernelManager(transport="ipc", ip=f"{directory.name}/kernel")
    manager.start_kernel()
    kernel = manager.client()
    kernel.start_channels()
    try:
        kernel.wait_for_ready(timeout=60)
        start, leagues, watch, end = ["".join(cell["source"]) for cell in cells()]
        kernel.execute(start)
        assert wait_for_message(kernel, "execute_result")["data"]["text/plain"] == "'3 players'"
        kernel.execute(leagues)
        assert "image/png" in wait_for_message(kernel, "display_data")["data"]
        watching = kernel.execute(watch)

        def shown() -> list[str]:
            lines = wait_for_message(kernel, "update_display_data")["data"]["text/plain"].splitlines()[1:]
            return [line.split()[1] for line in lines]

        assert shown() == ["cem", "ann", "bob"]
        scores.upsert([NEW])
        assert shown() == ["dan", "cem", "ann", "bob"]
        manager.interrupt_kernel()
        # A cell that is sent before is not run.
        replies = iter(lambda: kernel.get_shell_msg(timeout=60), None)
        assert next(reply for reply in replies if reply["parent_header"]["msg_id"] == watching)
        assert kernel.execute_interactive(end, timeout=60)["content"]["status"] == "ok"
    finally:
        kernel.stop_channels()
        manager.shutdown_kernel(now=True)
        directory.cleanup()


def test_the_notebook_is_kept_without_outputs() -> None:
    assert [cell for cell in cells() if cell["outputs"] or cell["execution_count"] is not None] == []


def select(answer: Any, target: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns what the data source makes of an answer: its rows, by the names of the panel's columns."""
    root = answer[target["root_selector"]] if target.get("root_selector") else answer
    rows = root if isinstance(root, list) else [root]
    kinds: dict[str, type] = {"string": str, "number": int}
    found = [{column["text"]: row[column["selector"]] for column in target["columns"]} for row in rows]
    for row in found:
        for column in target["columns"]:
            assert isinstance(row[column["text"]], kinds[column["type"]])
    return found


@pytest.mark.breadth
def test_the_queries_of_grafana_select_the_rows(server: ServerProcess, scores: Table) -> None:
    (source,) = yaml.safe_load((GRAFANA / "datasource.yaml").read_text())["datasources"]
    panels = json.loads((GRAFANA / "dashboard.json").read_text())["panels"]
    assert urlsplit(source["url"]).netloc == "localhost:7080"
    shown = {}
    with GatewayProcess(server.url) as gateway:
        for panel in panels:
            assert panel["datasource"] == {"type": source["type"], "uid": source["uid"]}
            (target,) = panel["targets"]
            assert (target["type"], target["parser"], target["source"]) == ("json", "backend", "url")
            address = urlsplit(source["url"] + target["url"])
            answer = gateway.get(address.path, method=target["url_options"]["method"], **dict(parse_qsl(address.query)))
            assert answer.status == 200, answer.body
            shown[panel["title"]] = select(answer.json, target)
    assert shown == {
        "Top 10": [{"Player": "cem", "Score": 44}, {"Player": "ann", "Score": 31}, {"Player": "bob", "Score": 27}],
        "Points by league": [{"League": "a", "Points": 75}, {"League": "b", "Points": 27}],
        "Players": [{"Players": 3}],
    }


def test_grafana_sends_the_token_if_the_comments_are_removed() -> None:
    text = (GRAFANA / "datasource.yaml").read_text().replace("    # ", "    ")
    (source,) = yaml.safe_load(text)["datasources"]
    assert source["jsonData"] == {"auth_method": "bearerToken"}
    assert source["secureJsonData"] == {"bearerToken": "$SCANKV_TOKEN"}
