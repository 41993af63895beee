"""Metrics, health, the OpenAPI description, and origins of other sites."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openapi_spec_validator import OpenAPIV31SpecValidator

from http_gateway.operations import OPERATIONS
from http_gateway.settings import GatewaySettings
from scankv.model.errors import UsageError
from tests.support.gateway import GatewayProcess
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client.sync import Client

import pytest


def test_metrics_are_those_of_the_server(gateway: GatewayProcess, client: Client) -> None:
    client.metrics()  # A server that has answered nothing has no metrics of answers.
    answer = gateway.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    names = {line.split("{")[0].split(" ")[0] for line in answer.body.decode().splitlines() if line[0] != "#"}
    expected = {line.split("{")[0].split(" ")[0] for line in client.metrics().splitlines() if line[0] != "#"}
    assert names == expected
    assert any(name.startswith("scankv_") for name in names)


@pytest.mark.breadth
def test_health_is_that_of_the_gateway_and_readiness_that_of_the_server(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, GatewayProcess(server.url) as gateway:
        assert gateway.get("/readyz").json == {"ready": True}
        server.kill()
        assert gateway.get("/healthz").json == {"alive": True}
        answer = gateway.get("/readyz")
        assert (answer.status, answer.json["reason"]) == (503, "NOT_READY")
        answer = gateway.get("/v1/tables")
        assert (answer.status, answer.json["reason"]) == (503, "UNAVAILABLE")
        assert int(answer.headers["retry-after"]) >= 1
        server.restart()
        assert gateway.get("/readyz").status == 200


def test_the_description_is_valid_and_has_every_path(gateway: GatewayProcess) -> None:
    described = gateway.get("/openapi.json").json
    OpenAPIV31SpecValidator(described).validate()
    assert sorted(described["paths"]) == sorted(each.path for each in OPERATIONS)
    (top,) = [each for each in OPERATIONS if each.name == "top"]
    names = [each["name"] for each in described["paths"][top.path]["get"]["parameters"]]
    assert names == ["table", *(each.name for each in top.parameters)]


@pytest.mark.breadth
def test_only_pages_of_allowed_origins_may_read_answers(tmp_path: Path) -> None:
    allowed, other = {"Origin": "https://app.example"}, {"Origin": "https://evil.example"}
    with (
        ServerProcess(tmp_path / "data") as server,
        GatewayProcess(server.url, origins=("https://app.example",)) as gateway,
    ):
        for method in ("GET", "OPTIONS"):
            answer = gateway.get("/v1/tables", method=method, headers=allowed)
            assert answer.headers["access-control-allow-origin"] == "https://app.example"
            assert "access-control-allow-credentials" not in answer.headers
            assert "access-control-allow-origin" not in gateway.get("/v1/tables", method=method, headers=other).headers
            assert "Origin" in answer.headers["vary"]
        preflight = gateway.get("/v1/tables", method="OPTIONS", headers=allowed)
        assert preflight.headers["access-control-allow-headers"] == "authorization, content-type, last-event-id"


@pytest.mark.parametrize("origin", ["*", "https://a.example/", "null", "https://a.example, https://b.example"])
def test_an_origin_is_named_completely(origin: str) -> None:
    with pytest.raises(UsageError, match=r"an origin must be like https://example\.com"):
        GatewaySettings(origins=(origin,))
