"""Downloads of scans: complete, exact, as slow as their readers, and never complete by mistake."""

from __future__ import annotations

import csv
import http.client
import io
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.support.gateway import target
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from aio_client.sync import Client, Table
    from tests.support.gateway import GatewayProcess

ROWS = 40_000


@pytest.mark.breadth
def test_each_format_has_all_rows(gateway: GatewayProcess, scores: Table) -> None:
    path, expected = f"/v1/tables/{scores.name}/scan", scores.scan().to_arrow().sort_by("player").to_pylist()

    def get(format_: str) -> bytes:
        answer = gateway.get(path, format=format_)
        assert answer.status == 200
        assert answer.headers["content-disposition"] == f'attachment; filename="{scores.name}.{format_}"'
        return answer.body

    def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(rows, key=lambda row: row["player"])

    assert pa.ipc.open_stream(get("arrow")).read_all().sort_by("player").to_pylist() == expected
    assert in_order(json.loads(get("json"))) == expected
    assert in_order([json.loads(line) for line in get("jsonl").splitlines()]) == expected
    lines = in_order(list(csv.DictReader(io.StringIO(get("csv").decode()))))
    assert lines == [{"player": row["player"], "score": str(row["score"])} for row in expected]


@pytest.mark.breadth
def test_a_download_has_the_columns_the_rows_and_the_limit_that_were_asked_for(
    gateway: GatewayProcess, scores: Table
) -> None:
    path = f"/v1/tables/{scores.name}/scan"
    answer = gateway.get(path, format="csv", where="score < 30", columns="score", limit="7")
    lines = answer.body.decode().splitlines()
    assert (lines[0], len(lines)) == ("score", 8)
    assert all(int(line) < 30 for line in lines[1:])
    assert json.loads(gateway.get(path, format="json", where="score < 0").body) == []
    assert pa.ipc.open_stream(gateway.get(path, format="arrow", where="score < 0").body).read_all().num_rows == 0


def test_formulas_are_quoted_if_asked_for(gateway: GatewayProcess, client: Client) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("=1+1", pa.string())])
    formulas = ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1", '="a,b"']
    texts = [*formulas, "a=1", "", None, "1-1"]
    table = client.create_table("http.formulas", schema, primary_key=["k"])
    table.upsert([{"k": number - 5, "=1+1": text} for number, text in enumerate(texts)])
    path = f"/v1/tables/{table.name}/scan"

    def get(**query: Any) -> list[list[str]]:
        body = gateway.get(path, format="csv", columns="k,=1+1", **query).body.decode()
        first, *rows = csv.reader(io.StringIO(body, newline=""))
        return [first, *sorted(rows, key=lambda row: int(row[0]))]

    given = [[str(number - 5), text or ""] for number, text in enumerate(texts)]
    assert get() == [["k", "=1+1"], *given]
    # Numbers stay numbers. A tab and a line break may divide the text.
    later = {f"{each}=1": f"'{each}'=1" for each in "\t\r\n"}
    quoted = [
        [number, later.get(text, f"'{text}") if place < len(formulas) else text]
        for place, (number, text) in enumerate(given)
    ]
    assert get(quote_formulas="true") == [["k", "'=1+1"], *quoted]
    refused = gateway.get(path, format="json", quote_formulas="true")
    assert (refused.status, refused.json["detail"]) == (
        400,
        "quote_formulas is for the format csv, not json: leave it out",
    )


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.stream"),
        ("text/csv;q=0.9, */*", "text/csv; charset=utf-8"),
        ("image/png, application/json", "application/json"),
        ("*/*", "application/jsonl"),
        ("image/png", "application/problem+json"),
    ],
)
def test_the_header_accept_chooses_the_format(
    gateway: GatewayProcess, scores: Table, accept: str, media_type: str
) -> None:
    answer = gateway.get(f"/v1/tables/{scores.name}/scan", headers={"Accept": accept})
    assert answer.headers["content-type"] == media_type
    assert answer.status == (406 if "problem" in media_type else 200)


@pytest.mark.breadth
def test_a_slow_reader_stops_the_scan_and_holds_up_nobody(
    gateway: GatewayProcess, client: Client, wide: Table, scores: Table
) -> None:
    connection = gateway.connection()
    connection.request("GET", target(f"/v1/tables/{wide.name}/scan"))
    response = connection.getresponse()
    start = response.read(1000)

    def waits() -> bool:
        (scan,) = [scan for scan in client.live_scans() if scan.table == wide.name]
        before = scan.rows
        for _ in range(20):  # while other requests are answered
            assert gateway.get(f"/v1/tables/{scores.name}/count").json["count"] == 100
            assert gateway.get(f"/v1/tables/{scores.name}/scan", limit=1).status == 200
        (scan,) = [scan for scan in client.live_scans() if scan.table == wide.name]
        return scan.rows == before < ROWS

    wait_until(waits, "the scan to stop")
    rows = (start + response.read()).splitlines()
    connection.close()
    assert sorted(json.loads(row)["k"] for row in rows) == list(range(ROWS))


def test_a_reader_that_goes_ends_its_scan(gateway: GatewayProcess, client: Client, wide: Table) -> None:
    connection = gateway.connection()
    connection.request("GET", target(f"/v1/tables/{wide.name}/scan"))
    connection.getresponse().read(1000)
    assert wide.name in [scan.table for scan in client.live_scans()]
    connection.close()
    wait_until(lambda: wide.name not in [scan.table for scan in client.live_scans()], "the end of the scan")


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/1.0"])
@pytest.mark.parametrize("format_", ["jsonl", "csv", "arrow"])
def test_a_broken_scan_does_not_look_complete(
    gateway: GatewayProcess, client: Client, wide: Table, format_: str, version: str
) -> None:
    connection = gateway.connection()
    # An answer to HTTP/1.0 has no length and no chunks: only its connection says whether it is complete.
    connection._http_vsn_str = version  # type: ignore[attr-defined]
    connection.request("GET", target(f"/v1/tables/{wide.name}/scan", format=format_))
    response = connection.getresponse()
    response.read(1000)
    (scan,) = [scan for scan in client.live_scans() if scan.table == wide.name]
    client.cancel_scan(scan.scan_id)
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        response.read()
    connection.close()
