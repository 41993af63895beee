"""Who may do what over HTTP: exactly those who may over gRPC."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from http_gateway.operations import OPERATIONS
from tests.http.test_sql import ask
from tests.support.gateway import HttpCaller

if TYPE_CHECKING:
    from tests.http.conftest import TokenGateway
    from tests.support.gateway import GatewayProcess, HttpAnswer

# What a path needs besides a table, and the statuses with tokens of no table, another table, this table and all tables.
QUERIES: dict[str, dict[str, Any]] = {
    "top": {"order_by": "score"},
    "aggregate": {"function": "sum(score)"},
    "rows": {"key": "ann"},
    "watchTop": {"order_by": "score"},
    "watchRows": {"key": "ann"},
}
TOKENS = ("read:none.*", "read:other.*", "read:game.*", "read:*")
OF_TABLE = (403, 403, 200, 200)
ALLOWED = {
    "listTables": (200, 200, 200, 200),
    "showTable": OF_TABLE,
    "top": OF_TABLE,
    "count": OF_TABLE,
    "aggregate": OF_TABLE,
    "rows": OF_TABLE,
    "scan": OF_TABLE,
    "watchTop": OF_TABLE,
    "watchRows": OF_TABLE,
    "watchCount": OF_TABLE,
    "sql": OF_TABLE,
    "metrics": (403, 403, 403, 200),
}
CHECKED = [each for each in OPERATIONS if not each.is_open]


def test_the_matrix_has_every_operation() -> None:
    assert sorted(each.name for each in CHECKED) == sorted(ALLOWED)


@pytest.mark.parametrize("operation", CHECKED, ids=lambda each: each.name)
def test_an_operation_needs_a_token_with_the_role_of_its_call(secured: TokenGateway, operation: object) -> None:
    (found,) = [each for each in CHECKED if each is operation]
    path, query = found.path.replace("{table}", "game.scores"), QUERIES.get(found.name, {})

    def answer_of(caller: HttpCaller, method: str) -> HttpAnswer:
        if found.method == "POST":
            return ask(caller, "select count(*) from game.scores")
        return caller.get(path, method=method, **query)

    statuses = [answer_of(HttpCaller(secured.port, secured.issuer.create(grant)), "HEAD").status for grant in TOKENS]
    assert tuple(statuses) == ALLOWED[found.name]
    for caller in (HttpCaller(secured.port), HttpCaller(secured.port, "scankv_0123456789abcdef_wrong")):
        answer = answer_of(caller, "GET")
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == 'Bearer realm="scankv"'
        assert answer.json["reason"] == "UNAUTHENTICATED"


def test_callers_see_only_tables_that_they_may_read(secured: TokenGateway) -> None:
    caller = HttpCaller(secured.port, secured.issuer.create("read:other.*"))
    assert [table["name"] for table in caller.get("/v1/tables").json["tables"]] == ["other.scores"]
    denied = caller.get("/v1/tables/game.scores").json
    assert denied["reason"] == "PERMISSION_DENIED"
    # Whether a table exists makes no difference.
    absent = caller.get("/v1/tables/game.nothing").json
    assert denied == {**absent, "metadata": denied["metadata"], "detail": denied["detail"]}


def test_requests_on_one_connection_use_their_own_tokens(secured: TokenGateway) -> None:
    allowed, denied = secured.issuer.create("read:*"), secured.issuer.create("read:other.*")
    connection = secured.connection()
    statuses = []
    for token in (allowed, denied, None, allowed):
        connection.request("GET", "/v1/tables/game.scores", headers=HttpCaller(0, token).headers())
        response = connection.getresponse()
        response.read()
        statuses.append(response.status)
    connection.close()
    assert statuses == [200, 403, 401, 200]


@pytest.mark.parametrize("value", ["Basic YTpi", "Bearer", "Bearer ", "Bearer a b", "Bearer " + "x" * 13_000])
def test_a_header_without_a_token_is_refused(secured: TokenGateway, value: str) -> None:
    assert secured.get("/v1/tables", headers={"Authorization": value}).status == 401


def test_a_token_in_the_address_is_no_token(secured: TokenGateway) -> None:
    assert secured.get("/v1/tables", token=secured.issuer.root).status == 400


def test_a_page_of_another_site_cannot_read_a_gateway_on_loopback(gateway: GatewayProcess) -> None:
    rebound = gateway.get("/v1/tables", headers={"Host": "evil.example:80"})
    assert (rebound.status, rebound.json["reason"]) == (421, "WRONG_HOST")
    for host in ("localhost", "127.0.0.1:80", "[::1]:80"):
        assert gateway.get("/v1/tables", headers={"Host": host}).status == 200
    asked = gateway.get("/v1/tables", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in asked.headers


def test_every_answer_has_headers_that_protect_browsers(gateway: GatewayProcess) -> None:
    for answer in (gateway.get("/v1/tables"), gateway.get("/nothing"), gateway.get("/v1/tables", method="OPTIONS")):
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


def test_methods_and_paths_that_do_not_exist_are_refused(gateway: GatewayProcess) -> None:
    for method in ("POST", "PUT", "DELETE", "TRACE"):
        answer = gateway.get("/v1/tables", method=method)
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert gateway.get("/v1/tables", method="OPTIONS").headers["allow"] == "GET, HEAD, OPTIONS"
    assert gateway.get("/v1/tables", method="HEAD").body == b""
    assert gateway.get("/v2").status == 404
    assert gateway.get("/v1/tables/" + "x" * 20_000).status == 414


def test_requests_at_the_same_time_use_their_own_tokens(secured: TokenGateway) -> None:
    allowed, denied = secured.issuer.create("read:game.*"), secured.issuer.create("read:other.*")
    paths = [f"/v1/tables/game.scores{end}" for end in ("", "/count", "/rows?key=ann", "/scan", "/top?order_by=score")]
    work = [(token, status, path) for token, status in ((allowed, 200), (denied, 403), (None, 401)) for path in paths]

    def status_of(token: str | None, path: str) -> int:
        connection = secured.connection()
        connection.request("GET", path, headers=HttpCaller(0, token).headers())
        with connection.getresponse() as response:
            response.read()
        connection.close()
        return response.status

    with ThreadPoolExecutor(len(work)) as threads:
        for _ in range(5):
            asked = [(status, threads.submit(status_of, token, path)) for token, status, path in work]
            assert [answer.result() for _, answer in asked] == [status for status, _ in asked]
