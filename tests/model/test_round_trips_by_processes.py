"""Values of every type go unchanged through HTTP, published tables and bootstraps, or are refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aio_client import sync
from tests.model.round_trips import check_refusals_out, layouts, read_all, write
from tests.model.ways_in import ARROW, Surroundings, WayIn
from tests.model.ways_out import ARROW as ARROW_OUT
from tests.model.ways_that_take_processes import BOOTSTRAPS, PUBLISHED, http_ways
from tests.support.command_line import CommandLine
from tests.support.gateway import GatewayProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.model.ways_out import WayOut
    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def world(shared_server: ServerProcess) -> Iterator[Surroundings]:
    """The server, its client and its command line."""
    with sync.connect(shared_server.url) as client:
        yield Surroundings(client, CommandLine(shared_server.url))


def test_every_value_comes_back_over_http(world: Surroundings, shared_server: ServerProcess) -> None:
    with GatewayProcess(shared_server.url) as gateway:
        _check(_differences(world, http_ways(gateway)))


@pytest.mark.parametrize("way", PUBLISHED, ids=lambda way: way.name)
def test_every_value_comes_back_from_a_published_table(world: Surroundings, way: WayOut) -> None:
    _check(_differences(world, [way]))


@pytest.mark.parametrize("way", BOOTSTRAPS, ids=lambda way: way.name)
def test_every_value_of_a_bootstrap_comes_back(world: Surroundings, way: WayIn) -> None:
    failures = []
    for layout in layouts():
        written, wrong = write(world, way, layout)
        failures += wrong or read_all(world, written, way.name, ARROW_OUT)
    _check(failures)


def _differences(world: Surroundings, ways: Sequence[WayOut]) -> list[str]:
    failures = []
    for layout in layouts():
        written, wrong = write(world, ARROW, layout)
        failures += wrong
        for way in ways:
            failures += read_all(world, written, ARROW.name, way)
            if not layout.is_key:
                failures += check_refusals_out(world, written, way, ARROW, every=False)
    return failures


def _check(failures: Sequence[str]) -> None:
    shown = "\n".join(text[:300] for text in failures[:40])
    assert not failures, f"{len(failures)} differences:\n{shown}"
