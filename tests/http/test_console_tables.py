"""The page of a table: its first rows at once, what it is, and an explanation of exactly what is run."""

from __future__ import annotations

import datetime as dt
import html
import re
import time
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from selenium.webdriver.common.by import By

from aio_client import agg, sync
from scankv.cli.inspect import stats_pairs
from scankv.formats.table_sheets import buckets_sheet, columns_sheet, definition_pairs, indexes_sheet, why_no_base
from tests.http.conftest import SCORES
from tests.support.gateway import GatewayProcess
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from selenium.webdriver import Chrome

    from aio_client.sync import Client, Table

EVENTS = pa.schema([pa.field("day", pa.date32(), nullable=False), pa.field("id", pa.int64(), nullable=False)])


def page(gateway: GatewayProcess, table: Table, **query: Any) -> str:
    """Returns the text of the page of a table, with its tags."""
    answer = gateway.get(f"/tables/{table.name}", **query)
    assert answer.status == 200, answer.body
    return html.unescape(answer.body.decode())


def explanation(gateway: GatewayProcess, table: Table, **query: Any) -> dict[str, str]:
    """Returns the lines of the explanation of a query by their names."""
    found = re.search(r"<pre>(.*?)</pre>", page(gateway, table, run="explain", **query), re.DOTALL)
    assert found is not None
    return dict(line.split(maxsplit=1) for line in found[1].splitlines())


def create(client: Client, schema: pa.Schema = SCORES, key: str = "player", **given: Any) -> Table:
    return client.create_table(f"http.t{uuid.uuid4().hex}", schema, primary_key=key.split(), **given)


@pytest.mark.breadth
def test_a_table_shows_its_first_rows_at_once(gateway: GatewayProcess, scores: Table, browser: Chrome) -> None:
    browser.get(f"http://127.0.0.1:{gateway.port}/tables/{scores.name}")
    rows = browser.find_elements(By.CSS_SELECTOR, "[role=status] tbody tr")
    assert len(rows) == 10
    shown = {tuple(row.text.split()) for row in rows}
    assert shown == {(row["player"], str(row["score"])) for row in scores.scan().limit(10).to_pylist()}


@pytest.mark.parametrize(("descending", "first"), [("true", "p99"), ("false", "p00")])
def test_the_direction_decides_which_rows_come_first(
    gateway: GatewayProcess, scores: Table, descending: str, first: str
) -> None:
    text = page(gateway, scores, order_by="score", limit=1, descending=descending, run="rows")
    assert f"<td>{first}</td>" in text
    direction = "descending" if descending == "true" else "ascending"
    told = explanation(gateway, scores, order_by="score", limit=1, descending=descending)
    assert told["order"].startswith(f"{direction} by score, nulls last")
    assert told["limit"] == "1 row"


@pytest.mark.breadth
def test_explain_explains_the_query_that_show_rows_runs(gateway: GatewayProcess, client: Client) -> None:
    table = create(client, indexes=["score"])
    table.upsert([{"player": f"p{number:02}", "score": number} for number in range(100)])
    query = {"order_by": "score", "where": "score < 50", "limit": 3}
    assert explanation(gateway, table, **query)["keys"].startswith("in the order of the index on (score)")
    for player in ("p49", "p48", "p47"):
        assert f"<td>{player}</td>" in page(gateway, table, run="rows", **query)
    # Without an order, the rows are those of a scan.
    told = explanation(gateway, table, where="score < 50", limit=3)
    assert told["keys"].startswith("from the index on (score): score < 50")
    assert told["order"].startswith("ascending by key within each bucket")
    assert str(table.explain_top_n(3, "score", "score < 50")) in page(gateway, table, run="explain", **query)


def test_explain_of_a_table_whose_rows_expire_has_the_time_and_the_predicate(
    gateway: GatewayProcess, client: Client
) -> None:
    id_, at = pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("us", "UTC"))
    schema = pa.schema([id_, at, ("v", pa.int64())])
    table = create(client, schema, "id", ttl_seconds=3600, ttl_column="at")
    now = dt.datetime.now(dt.UTC)
    table.upsert([{"id": n, "at": now - dt.timedelta(hours=2 * n), "v": n} for n in range(5)])
    for order in ({}, {"order_by": "v"}):
        told = explanation(gateway, table, where="v < 3", **order)
        assert 'col("v") < 3' in told["filter"]
        assert 'col("at") >' in told["filter"]
        assert told["read"] == "at, v"
        assert "1 row<" in page(gateway, table, where="v < 3", run="rows", **order)
    assert "ttl_seconds=3600" in page(gateway, table)


def test_explain_and_first_rows_of_a_table_without_a_key(gateway: GatewayProcess, client: Client) -> None:
    table = client.create_table(f"http.t{uuid.uuid4().hex}", SCORES, primary_key=[])
    table.append([{"player": "a", "score": 1}, {"player": "b", "score": 2}])
    text = page(gateway, table)
    assert "none: rows are only appended" in text
    assert "2 rows<" in text
    assert explanation(gateway, table)["order"].startswith("ascending by log offset")
    told = explanation(gateway, table, order_by="score")
    assert told["order"] == "descending by score, nulls last; equal rows in any order"
    assert told["keys"] == "all keys"


def test_a_partitioned_table_lists_its_first_partitions_and_their_number(
    gateway: GatewayProcess, client: Client
) -> None:
    table = create(client, EVENTS, "day id", partition_by=["day"])
    first = dt.date(2026, 1, 1)
    table.upsert([{"day": first + dt.timedelta(days=number % 120), "id": number} for number in range(240)])
    text = page(gateway, table)
    assert "the first 100 of 120 partitions<" in text
    assert text.count('<th scope="row">2026-') == 100
    assert '<th scope="row">2026-01-01</th><td class="number">2</td>' in text
    few = create(client, EVENTS, "day id", partition_by=["day"])
    few.upsert([{"day": first, "id": 1}])
    assert ">1 partition<" in page(gateway, few)
    assert "Partitions" not in page(gateway, create(client))


def test_rows_that_a_table_does_not_count_are_not_shown_as_none(gateway: GatewayProcess, client: Client) -> None:
    table = create(client, changelog="upsert", buckets=1)
    table.upsert([{"player": "ann", "score": 31}])
    text = page(gateway, table)
    assert "<dd>not counted; press “Count rows”</dd>" in text
    assert '<th scope="row">0</th><td class="number">not counted</td>' in text


def test_columns_by_which_a_table_is_partitioned_keep_their_names(gateway: GatewayProcess, client: Client) -> None:
    schema = pa.schema([pa.field(name, pa.string(), nullable=False) for name in ("region", "rows", "id")])
    table = create(client, schema, "region rows id", partition_by=["region", "rows"])
    table.upsert([{"region": "eu", "rows": "few", "id": "1"}])
    text = page(gateway, table)
    assert '<th scope="col">region</th><th scope="col">rows</th><th scope="col" class="number">Rows</th>' in text
    assert '<th scope="row">eu</th><td>few</td><td class="number">1</td>' in text


@pytest.mark.parametrize("type_", [pa.binary(), pa.string()])
def test_large_rows_are_cut_and_a_page_reads_few_of_them(
    gateway: GatewayProcess, client: Client, type_: pa.DataType
) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", type_)])
    table = create(client, schema, "k", buckets=1)
    value = b"x" * 1_500_000
    for number in range(6):
        table.upsert([{"k": number, "v": value if type_ == pa.binary() else value.decode()}])
    answer = gateway.get(f"/tables/{table.name}")
    text = html.unescape(answer.body.decode())
    assert answer.status == 200
    shown = re.search(r"<caption>(\d) rows</caption>", text)
    assert shown is not None
    assert 1 < int(shown[1]) < 6
    assert "More rows may match" in text
    assert ("78" * 150 if type_ == pa.binary() else "x" * 300) + "…<" in text
    assert len(text) < 50_000
    assert "More rows may match" not in page(gateway, table, where="k = 1")


def test_a_table_shows_how_its_columns_are_merged(gateway: GatewayProcess, client: Client) -> None:
    totals = create(client, merge_engine="aggregate", aggregators={"score": agg.sum()})
    text = page(gateway, totals)
    assert "merge_engine=aggregate" in text
    assert "<td>agg.sum()</td>" in text
    versioned = create(client, merge_engine="versioned", version_column="score")
    assert "<td>decides which row is newer</td>" in page(gateway, versioned)
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("seq", pa.int64()), ("a", pa.int64())])
    partial = create(client, schema, "k", merge_engine="partial_update", sequence_groups={"seq": ["a"]})
    assert "<td>by seq</td>" in page(gateway, partial)


def test_the_page_has_the_labels_and_values_of_the_command_line(gateway: GatewayProcess, client: Client) -> None:
    table = create(client, indexes=["score"], tablets=1, ttl_seconds=3600)
    client.alter_table(table.name, column_comments={"score": "won"})
    table.upsert([{"player": "ann", "score": 31}])
    found = client.table(table.name)
    # The first check of the server may come between the page and the statistics.
    wait_until(lambda: "rows" in why_no_base(found.stats()), "the server knows why there is no base")
    text, buckets = page(gateway, table), found.stats()
    for name, value in definition_pairs(found, buckets, None, "press “Count rows”").items():
        assert f"<dt>{name[0].upper()}{name[1:]}</dt><dd>{value}</dd>" in text
    indexes = indexes_sheet(found.index_status())
    assert f"No bucket has a columnar base: {why_no_base(buckets)}.</p>" in text
    sheets = (columns_sheet(found, {}), indexes, buckets_sheet(buckets))
    for header in {header for sheet in sheets for header in sheet.headers}:
        assert f">{header[0].upper()}{header[1:]}</th>" in text


@pytest.mark.breadth
def test_a_refresh_keeps_the_query_and_so_does_its_end(gateway: GatewayProcess, scores: Table, browser: Chrome) -> None:
    query = "where=score+%3C+7&order_by=score&descending=false&limit=3&run=rows"
    browser.get(f"http://127.0.0.1:{gateway.port}/tables/{scores.name}?{query}")

    def players() -> list[str]:
        return [row.text.split()[0] for row in browser.find_elements(By.CSS_SELECTOR, "[role=status] tbody tr")]

    assert players() == ["p00", "p01", "p02"]
    browser.find_element(By.LINK_TEXT, "Refresh every 5 seconds").click()
    assert browser.current_url.endswith(f"?{query}&refresh=5")
    assert players() == ["p00", "p01", "p02"]
    assert not browser.find_elements(By.CSS_SELECTOR, "main form")
    browser.find_element(By.LINK_TEXT, "Stop refreshing").click()
    assert browser.current_url.endswith(f"?{query}")
    assert browser.find_element(By.ID, "where").get_attribute("value") == "score < 7"
    assert browser.find_element(By.ID, "descending").get_attribute("value") == "false"


@pytest.mark.breadth
def test_a_slow_table_does_not_keep_its_page_from_coming_nor_is_its_query_repeated(tmp_path: Path) -> None:
    settings = ("--set", "max_live_scans=1", "--set", "max_waiting_scans=1", "--set", "admission_wait_seconds=60")
    with (
        ServerProcess(tmp_path / "data", *settings) as server,
        sync.connect(server.url) as client,
        GatewayProcess(server.url) as gateway,
    ):
        schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("text", pa.string())])
        table = client.create_table("a.wide", schema, primary_key=["k"])
        table.upsert(pa.table({"k": range(20_000), "text": [f"{number:01000}" for number in range(20_000)]}, schema))
        with table.scan().with_chunk(rows=100).stream() as stream:
            next(stream)
            began = time.monotonic()
            text = page(gateway, table)
            # Without a limit, the page would wait for its rows until the client gives up, after 10 seconds.
            assert time.monotonic() - began < 8
            assert "The rows did not arrive within 2 seconds." in text
            assert "press “Show rows” to wait" in text
            assert "20,000" in text
            answer = gateway.get(f"/tables/{table.name}", refresh="5")
            assert "refresh" not in answer.headers
            assert "no longer refreshes itself" in answer.body.decode()
            assert b"Explain query" in answer.body
        assert "10 rows<" in page(gateway, table)
        assert gateway.get(f"/tables/{table.name}", refresh="5").headers["refresh"] == "5"


@pytest.mark.breadth
def test_a_table_with_a_damaged_bucket_shows_the_damage_and_the_rest(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        with sync.connect(server.url) as client:
            client.create_table("a.t", SCORES, primary_key=["player"], buckets=2).upsert(
                [{"player": f"p{number}", "score": number} for number in range(20)]
            )
        assert server.stop() == 0
        (tmp_path / "data" / "tables" / "a" / "t" / "buckets" / "0001" / "CURRENT").write_bytes(b"nonsense")
        server.restart()
        with sync.connect(server.url) as client, GatewayProcess(server.url) as gateway:
            text = page(gateway, client.table("a.t"))
            assert re.search(r'role="alert" class="problem">[^<]*damaged', text)
            assert re.search(r'<th scope="row">1</th>.*bucket 1 of a.t is damaged', text)
            assert "<dd>player</dd>" in text


def test_the_page_of_the_server_has_the_labels_of_the_command_line(gateway: GatewayProcess, client: Client) -> None:
    text = gateway.get("/server").body.decode()
    labels = re.findall("<dt>(.*?)</dt>", text)
    assert len(labels) > 10
    assert {f"{label[0].lower()}{label[1:]}" for label in labels} <= set(stats_pairs(client.stats()))
