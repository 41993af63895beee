"""Addresses of live pages: what they name, and which of them the login follows."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

import pytest

from http_gateway.console.live_links import is_deep_link, live_link, login_address
from http_gateway.console.live_page import LIVE_PARAMETERS
from http_gateway.parameters import read_parameters

FULL = [
    ("order_by", "a&b"),
    ("where", "score > 1 and name = 'x\\y<\"'"),
    ("limit", "7"),
    ("descending", "false"),
    ("columns", "a&b,ö"),
    ("every", "0.5"),
]


@pytest.mark.parametrize("given", [FULL, FULL[:1], [*FULL[:2], ("limit", "10"), ("every", "1")]])
def test_a_link_names_what_it_was_made_from(given: list[tuple[str, str]]) -> None:
    values = read_parameters(LIVE_PARAMETERS, given)
    link = live_link("game.scores", LIVE_PARAMETERS, values)
    assert read_parameters(LIVE_PARAMETERS, parse_qsl(urlsplit(link).query)) == values
    assert urlsplit(link).path == "/tables/game.scores/top"
    assert is_deep_link(link)


def test_a_link_names_no_defaults() -> None:
    values = read_parameters(LIVE_PARAMETERS, [("order_by", "score"), ("where", ""), ("limit", "10")])
    assert live_link("a.b", LIVE_PARAMETERS, values) == "/tables/a.b/top?order_by=score"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "/login",
        "/scans",
        "/tables/a.b",
        "/tables/a.b/top/events?order_by=x",
        "/tables/a/b/top",
        "//evil.example/tables/a.b/top",
        "///tables/a.b/top",
        "/\\evil.example/tables/a.b/top",
        "\\/tables/a.b/top",
        "https://evil.example/tables/a.b/top",
        "javascript:alert(1)",
        "/tables/a.b/top?order_by=x#y",
        "/tables/a.b/top?order_by=x\n",
        "/tables/a.b/top?order_by=x\r\nSet-Cookie: x",
        "/tables/a.b/top?order_by=\t",
        "/tables/a.b/top?order_by=<script>",
        '/tables/a.b/top?order_by="',
        " /tables/a.b/top",
        "/console/x/tables/a.b/top",
        "/tables/a.b/top?order_by=ö",
        "/tables/a.b/top?order_by=" + "x" * 9000,
    ],
)
def test_the_login_follows_no_other_address(text: str) -> None:
    assert not is_deep_link(text)
    assert login_address(text) == "/login"
