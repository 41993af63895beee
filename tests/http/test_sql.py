"""`POST /v1/sql`: queries that only read, with the rights of the caller, and reach nothing else of the gateway."""

from __future__ import annotations

import csv
import io
import json
import os
import threading
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from tests.support.gateway import GatewayProcess, HttpAnswer, HttpCaller, target
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aio_client.sync import Client, Table
    from tests.http.conftest import TokenGateway
    from tests.support.server_process import ServerProcess


# Its scan does not end before it.
SLOW: Final = "select max(length(text)) from http.wide where sleep_ms(1 + k % 2) is null"


def ask(
    gateway: HttpCaller, query: object, parameters: object = None, *, content: str = "application/json", **options: Any
) -> HttpAnswer:
    """Sends a query, and returns the answer."""
    body = {"query": query, **({} if parameters is None else {"parameters": parameters})}
    headers = gateway.headers({"Content-Type": content, "Accept": "application/json"})
    return gateway._send("POST", target("/v1/sql", **options), json.dumps(body), headers)


@pytest.fixture(scope="module")
def narrow(shared_server: ServerProcess) -> Iterator[GatewayProcess]:
    """A gateway that gives queries little memory and time, and runs one at once."""
    with GatewayProcess(
        shared_server.url, sql_memory_bytes=64 * 1024 * 1024, sql_seconds=8.0, max_sql_queries=1
    ) as gateway:
        ask(gateway, "select 1")  # The first query imports DuckDB.
        yield gateway


def test_each_format_has_all_rows(gateway: GatewayProcess, wide: Table) -> None:
    query = f"select k, k / 2 as half, text[1000:] as last from {wide.name} where k < $most order by k"
    expected = [{"k": k, "half": k / 2, "last": str(k % 10)} for k in range(20_000)]

    def get(format_: str) -> bytes:
        answer = ask(gateway, query, {"most": 20_000}, format=format_)
        assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, TYPES[format_])
        return answer.body

    assert pa.ipc.open_stream(get("arrow")).read_all().to_pylist() == expected
    assert json.loads(get("json")) == expected
    assert [json.loads(line) for line in get("jsonl").splitlines()] == expected
    lines = list(csv.DictReader(io.StringIO(get("csv").decode())))
    assert [(int(line["k"]), float(line["half"]), line["last"]) for line in lines] == [
        tuple(row.values()) for row in expected
    ]


TYPES: Final = {
    "arrow": "application/vnd.apache.arrow.stream",
    "csv": "text/csv",
    "jsonl": "application/jsonl",
    "json": "application/json",
}


def test_what_the_server_computes_and_what_has_no_rows(gateway: GatewayProcess, scores: Table) -> None:
    assert ask(gateway, f"select count(*) n from {scores.name} where score >= ?", [90]).json == [{"n": 10}]
    assert ask(gateway, f"select * from {scores.name} where score > 1000").json == []
    assert ask(gateway, "select 1 as one").json == [{"one": 1}]


def file(directory: Path) -> Path:
    path = directory / "secret.csv"
    path.write_text("secret\n4711\n")
    return path


WAYS_AROUND: Final = [
    *("from read_csv('{file}')", "from '{file}'", "from read_text('{file}')", "from read_blob('{file}')"),
    *("from sniff_csv('{file}')", "from glob('{dir}/*')", "from read_parquet('{file}')", "from read_json('{file}')"),
    *("from read_duckdb('{file}')", "from parquet_metadata('{file}')", "from 'http://127.0.0.1:{port}/healthz'"),
    "from read_csv('http://127.0.0.1:{port}/healthz')",
    "from query('from read_csv(''{file}'')')",
    "from query_table('{file}')",
    "from json_execute_serialized_sql(json_serialize_sql('from read_csv(''{file}'')'))",
    *("copy (select 1) to '{dir}/out.csv'", "copy x from '{file}'", "export database '{dir}/out'"),
    *("from query('copy (select 1) to ''{dir}/out.csv''')", "attach '{dir}/out.db'", "import database '{dir}'"),
    *("install httpfs", "load httpfs", "load '{file}'", "force install httpfs", "update extensions"),
    *("set threads = 1", "set lock_configuration = false", "reset memory_limit", "pragma threads = 1", "use memory"),
    *("pragma enable_profiling", "pragma database_list", "call enable_logging()", "checkpoint", "vacuum"),
    "from enable_logging(storage = 'file', storage_path = '{dir}/out')",
    "from enable_profiling()",
    "from add_grammar_extension('x')",
    *("select getenv('HOME')", "create secret s (type s3)", "create or replace table t as select 1"),
    *("from sampler", "from settings", "from self", "from gateway", "from _LOCKED", "from con"),
    *("insert into http.scores values ('x', 1)", "update http.scores set score = 1", "delete from http.scores"),
    *("drop table http.scores", "merge into http.scores using http.scores s on true when matched then delete"),
    *("alter table http.scores add column x int", "truncate http.scores", "create view v as select 1"),
    *("select 1; select 2", "select 1; copy (select 1) to '{dir}/out.csv'", "prepare p as select 1", "begin"),
    *("explain analyze select 1", "set variable x = 1", "detach memory", "comment on table t is 'x'"),
    *("from arrow_scan(1, 2, 3)", "from pandas_scan(1)", "select 1::pointer", "from python_map_function(1)"),
]


@pytest.mark.parametrize("query", WAYS_AROUND)
def test_a_query_reaches_neither_files_nor_network_nor_variables_nor_settings(
    gateway: GatewayProcess, scores: Table, tmp_path: Path, query: str
) -> None:
    path = file(tmp_path)
    answer = ask(gateway, query.format(file=path, dir=tmp_path, port=gateway.port))
    assert answer.status == 400, answer.body
    assert answer.headers["content-type"] == "application/problem+json"
    assert b"4711" not in answer.body
    assert os.listdir(tmp_path) == [path.name]
    assert scores.count() == 100


def test_a_query_sees_no_secrets_and_no_earlier_query(gateway: GatewayProcess) -> None:
    names = ("temp_directory", "enable_external_access", "lock_configuration", "python_enable_replacements")
    settings = ask(gateway, f"select name, value from duckdb_settings() where name in {names} order by name").json
    expected = {"enable_external_access": "false", "lock_configuration": "true", "python_enable_replacements": "false"}
    assert {row["name"]: row["value"] for row in settings} == {**expected, "temp_directory": ""}
    for function in ("duckdb_secrets", "duckdb_variables", "duckdb_logs", "duckdb_temporary_files"):
        assert ask(gateway, f"from {function}()").json == []
    assert ask(gateway, "select * from duckdb_views() where not internal").json == []
    assert ask(gateway, "select current_setting('memory_limit') m").json == [{"m": "1.0 GiB"}]


WRONG: Final = [
    ({"query": 5}, "application/json", 400, "query is missing, or no text"),
    ({"query": "select 1", "frames": {}}, "application/json", 400, 'the body has "frames"'),
    ({"query": "select ?", "parameters": 5}, "application/json", 400, "parameters must be a list for ?"),
    ({"query": "select " + "(" * 300 + "1" + ")" * 300}, "application/json", 400, "nested too deeply"),
    ({"query": "selec 1"}, "application/json", 400, "syntax error"),
    ({"query": "select nothing from http.scores"}, "application/json", 400, '"nothing" not found'),
    ({"query": "select * from http.nothing"}, "application/json", 404, "does not exist"),
    ({"query": "select 1"}, "text/plain", 415, "Content-Type: application/json"),
    ({"query": "select 1"}, "application/x-www-form-urlencoded", 415, "Content-Type: application/json"),
]


@pytest.mark.parametrize(("body", "content", "status", "detail"), WRONG)
def test_a_request_that_is_no_query_is_refused(
    gateway: GatewayProcess, scores: Table, body: object, content: str, status: int, detail: str
) -> None:
    answer = gateway._send("POST", "/v1/sql", json.dumps(body), {"Content-Type": content})
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")
    assert detail in answer.json["detail"]
    assert gateway.get("/v1/sql").status == 405


def test_a_query_has_the_rights_of_its_caller(secured: TokenGateway) -> None:
    def caller(token: str | None) -> HttpCaller:
        return HttpCaller(secured.port, token)

    reader = caller(secured.issuer.create("read:game.*"))
    # DuckDB reads with several threads of its own, none of which may lose the token of the caller.
    big = "select count(*) n, max(length(text)) l from game.wide where k % 2 = 0"
    assert ask(reader, big).json == [{"n": 20_000, "l": 1000}]
    assert ask(reader, "select * from game.scores").json == [{"player": "ann", "score": 31}]
    refused = ask(reader, "select * from other.scores")
    assert (refused.status, refused.json["reason"]) == (403, "PERMISSION_DENIED")
    for query in ("select 1", "select count(*) from game.scores", big):
        assert ask(caller(None), query).status == 401
        assert ask(caller("wrong"), query).status == 401


def test_a_query_that_takes_too_much_memory_or_time_ends_and_its_scans_with_it(
    narrow: GatewayProcess, client: Client, wide: Table
) -> None:
    many = ask(narrow, f"select len(list(k + range)) from {wide.name}, range(10_000)")
    assert (many.status, many.json["reason"]) == (413, "REQUEST_TOO_LARGE")
    # DuckDB does not count the values of functions.
    one = ask(narrow, f"select length(repeat(text, 4_000_000)) from {wide.name} limit 1")
    assert one.status == 413
    assert "Out of Memory" in one.json["detail"]
    slow = ask(narrow, SLOW)
    assert (slow.status, slow.json["reason"]) == (504, "DEADLINE_EXCEEDED")
    assert "the query took longer than 8 s" in slow.json["detail"]
    assert [scan for scan in client.live_scans() if scan.table == wide.name] == []
    assert ask(narrow, f"select count(*) n from {wide.name}").json == [{"n": 40_000}]


def test_a_client_that_leaves_ends_its_query_and_its_scans(
    narrow: GatewayProcess, gateway: GatewayProcess, client: Client, wide: Table
) -> None:
    queries = {
        "before the first row": SLOW,
        "while it reads": f"select k, text from {wide.name}",
    }
    for query in queries.values():
        connection = gateway.connection()
        body = json.dumps({"query": query})
        connection.request("POST", "/v1/sql", body, headers={"Content-Type": "application/json"})
        if query == queries["while it reads"]:
            connection.getresponse().read(1000)
        wait_until(lambda: wide.name in [scan.table for scan in client.live_scans()], "the scan")
        connection.close()
        wait_until(lambda: wide.name not in [scan.table for scan in client.live_scans()], "the end of the scan")
    assert ask(gateway, "select 1 as one").json == [{"one": 1}]


def test_too_many_queries_at_once_are_refused(narrow: GatewayProcess, wide: Table) -> None:
    answers: list[HttpAnswer] = []
    askers = [threading.Thread(target=lambda: answers.append(ask(narrow, SLOW))) for _ in range(3)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert sorted(answer.status for answer in answers) == [503, 503, 504]
    busy = next(answer for answer in answers if answer.status == 503)
    assert busy.json["detail"].startswith("the gateway has too many queries in SQL at once")
    assert "retry-after" in busy.headers


def test_a_gateway_without_duckdb_says_what_to_install(
    shared_server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['duckdb'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with GatewayProcess(shared_server.url) as gateway:
        answer = ask(gateway, "select 1")
        assert (answer.status, answer.json["reason"]) == (501, "NOT_INSTALLED")
        assert 'pip install ".[http,sql]"' in answer.json["detail"]
        assert gateway.get("/v1/tables").status == 200
