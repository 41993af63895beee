"""Questions about tables over HTTP have the answers of the client."""

from __future__ import annotations

import json
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

if TYPE_CHECKING:
    from aio_client.sync import Client, Table
    from tests.support.gateway import GatewayProcess


def rows(gateway: GatewayProcess, path: str, **query: Any) -> list[dict[str, Any]]:
    answer = gateway.get(path, **query)
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json["rows"]
    return found


@pytest.mark.breadth
def test_top_n_has_the_rows_of_the_client_in_order(gateway: GatewayProcess, scores: Table) -> None:
    path = f"/v1/tables/{scores.name}/top"
    assert rows(gateway, path, order_by="score") == scores.top_n(10, "score").to_pylist()
    query = {"order_by": "score", "descending": "false", "limit": 3, "where": "score >= 40", "columns": "player"}
    assert rows(gateway, path, **query) == [{"player": "p40"}, {"player": "p41"}, {"player": "p42"}]


def test_count_and_aggregates_and_rows_by_key(gateway: GatewayProcess, scores: Table) -> None:
    path = f"/v1/tables/{scores.name}"
    assert gateway.get(f"{path}/count").json == {"table": scores.name, "count": 100}
    assert gateway.get(f"{path}/count", where="score < 7 and player like 'p0%'").json["count"] == 7
    assert rows(gateway, f"{path}/aggregate", function=["sum(score)", "max(score)"]) == [
        {"score_sum": 4950, "score_max": 99}
    ]
    assert rows(gateway, f"{path}/aggregate", function="count(score)", group_by="player", where="score < 2") == [
        {"player": "p00", "score_count": 1},
        {"player": "p01", "score_count": 1},
    ]
    assert rows(gateway, f"{path}/rows", key=["p07", "nobody", "p11"]) == [
        {"player": "p07", "score": 7},
        {"player": "p11", "score": 11},
    ]


def test_tables_are_listed_and_described(gateway: GatewayProcess, scores: Table) -> None:
    described = gateway.get(f"/v1/tables/{scores.name}").json
    assert described["columns"] == [
        {"name": "player", "type": "string", "nullable": False},
        {"name": "score", "type": "int64", "nullable": True},
    ]
    assert described["primary_key"] == ["player"]
    assert described in gateway.get("/v1/tables").json["tables"]


def test_no_value_is_changed_by_a_reader_that_has_only_float64(gateway: GatewayProcess, client: Client) -> None:
    schema = pa.schema(
        [
            pa.field("k", pa.int64(), nullable=False),
            ("u", pa.uint64()),
            ("d", pa.decimal128(20, 2)),
            ("f", pa.float64()),
            ("b", pa.binary()),
            ("l", pa.list_(pa.int64())),
            ("s", pa.string()),
        ]
    )
    table = client.create_table(f"http.t{uuid.uuid4().hex}", schema, primary_key=["k"])
    row = {"k": 2**53, "u": 2**64 - 1, "d": Decimal("1.10"), "f": float("nan"), "b": b"\x00\xff", "l": [-(2**60), 5]}
    table.upsert([{**row, "s": 'a "line"\n</script>\u2028'}, {**row, "k": 2**53 - 1, "s": None}])
    answer = gateway.get(f"/v1/tables/{table.name}/rows", key=str(2**53))
    # As JavaScript reads it: each number as a float64, and no word that JSON does not have.
    (found,) = json.loads(answer.body, parse_int=float, parse_constant=pytest.fail)["rows"]
    assert found == {
        "k": "9007199254740992",
        "u": "18446744073709551615",
        "d": "1.10",
        "f": "NaN",
        "b": "00ff",
        "l": ["-1152921504606846976", 5],
        "s": 'a "line"\n</script>\u2028',
    }
    assert rows(gateway, f"/v1/tables/{table.name}/rows", key=str(2**53 - 1))[0]["k"] == 2**53 - 1


def test_times_of_any_year_are_text_and_keys(gateway: GatewayProcess, client: Client) -> None:
    schema = pa.schema([("day", pa.date32()), ("at", pa.timestamp("us"))])
    table = client.create_table(f"http.t{uuid.uuid4().hex}", schema, primary_key=["day"])
    columns = [pa.array([2_932_897], pa.int32()).view(pa.date32()), pa.array([2**63 - 1]).view(pa.timestamp("us"))]
    table.upsert(pa.table(columns, names=schema.names))
    expected = {"day": "+10000-01-01", "at": "+294247-01-10T04:00:54.775807"}
    assert rows(gateway, f"/v1/tables/{table.name}/rows", key=expected["day"]) == [expected]
    downloaded = gateway.get(f"/v1/tables/{table.name}/scan", format="csv").body.decode()
    assert downloaded.splitlines()[1] == ",".join(expected.values())


@pytest.mark.parametrize(
    ("path", "query", "message"),
    [
        ("/count", {"wher": "score > 1"}, 'there is no parameter "wher": the parameters here are where'),
        ("", {"x": "1"}, "this path has no parameters"),
        ("/count", {"where": ["score > 1", "score > 2"]}, "where is given 2 times"),
        ("/count", {"where": "score >"}, "expected a value"),
        ("/count", {"where": "x" * 9000}, "where has 9,000 characters: at most 8,192"),
        ("/top", {}, "order_by is missing"),
        ("/top", {"order_by": "score", "limit": "0"}, "limit must be a whole number from 1 to 10,000, not '0'"),
        ("/top", {"order_by": "score", "limit": "1e3"}, "limit must be a whole number"),
        ("/top", {"order_by": "score", "limit": "²"}, "limit must be a whole number"),
        ("/top", {"order_by": "score", "descending": "up"}, "descending must be true or false, not 'up'"),
        ("/top", {"order_by": "nothing"}, '"nothing"'),
        ("/top", {"order_by": "score", "columns": "player,,score"}, "columns must be names"),
        ("/aggregate", {"function": "score"}, "function must be count, sum, min, max or mean with a column"),
        ("/aggregate", {"function": "avg(score)"}, "function must be"),
        ("/rows", {"key": "a\x00b" * 3000}, "key may have at most"),
    ],
)
def test_a_wrong_parameter_is_refused_with_what_is_allowed(
    gateway: GatewayProcess, scores: Table, path: str, query: dict[str, Any], message: str
) -> None:
    answer = gateway.get(f"/v1/tables/{scores.name}{path}", **query)
    assert answer.status == 400, answer.body
    assert answer.headers["content-type"] == "application/problem+json"
    assert message in answer.json["detail"]


def test_an_error_of_the_server_is_a_problem_with_its_code_reason_and_metadata(gateway: GatewayProcess) -> None:
    answer = gateway.get("/v1/tables/no.table/count")
    assert answer.status == 404
    problem = answer.json
    assert {problem["code"], problem["reason"]} == {"NOT_FOUND", "TABLE_NOT_FOUND"}
    assert problem["metadata"] == {"table": "no.table"}
    assert problem["status"] == 404
    assert '"no.table" does not exist' in problem["detail"]
