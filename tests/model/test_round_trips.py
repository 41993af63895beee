"""Values of every type go through every pair of a way in and a way out unchanged, or are refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from aio_client import sync
from tests.model.round_trips import check_refusals_in, check_refusals_out, layouts, read_all, write
from tests.model.ways_in import ARROW, WAYS_IN, Surroundings, WayIn
from tests.model.ways_out import WAYS_OUT
from tests.support.command_line import CommandLine
from tests.support.examples import FACTOR

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.server_process import ServerProcess

_EVERY: Final = FACTOR > 1


@pytest.fixture(scope="module")
def world(shared_server: ServerProcess) -> Iterator[Surroundings]:
    """The server, its client and its command line."""
    with sync.connect(shared_server.url) as client:
        yield Surroundings(client, CommandLine(shared_server.url))


@pytest.mark.breadth
@pytest.mark.parametrize("way", WAYS_IN, ids=lambda way: way.name)
def test_every_value_comes_back_by_every_way_out(world: Surroundings, way: WayIn) -> None:
    failures = []
    for layout in layouts():
        if layout.name == "encoded" and not way.encodes:
            continue
        written, wrong = write(world, way, layout)
        failures += wrong
        for way_out in WAYS_OUT if not wrong else ():
            failures += read_all(world, written, way.name, way_out)
    _check(failures)


def test_a_way_in_names_the_column_and_the_reason_of_what_it_refuses(world: Surroundings) -> None:
    tried = [(way, layout) for way in WAYS_IN if way.refuses for layout in layouts()]
    _check([text for way, layout in tried for text in check_refusals_in(world, way, layout, every=_EVERY)])


@pytest.mark.breadth
def test_a_way_out_names_the_column_and_the_reason_of_what_it_refuses(world: Surroundings) -> None:
    failures = []
    for layout in layouts():
        if not layout.is_key:
            written, wrong = write(world, ARROW, layout)
            failures += wrong
            for way in WAYS_OUT:
                failures += check_refusals_out(world, written, way, ARROW, every=_EVERY)
    _check(failures)


def _check(failures: Sequence[str]) -> None:
    shown = "\n".join(text[:300] for text in failures[:40])
    assert not failures, f"{len(failures)} differences:\n{shown}"
