"""Values of every type go through Spark unchanged, or are refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from pyspark.errors import PySparkException

from tests.model.round_trips import check_refusals_out, layouts, read_all, write
from tests.model.ways_in import ARROW, Surroundings, WayRefusedError
from tests.model.ways_out import Wanted, WayOut, rows_of_arrow
from tests.model.ways_that_take_processes import copy_of
from tests.support.command_line import CommandLine

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from aio_client import sync
    from tests.model.ways_in import Row
    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.soak

_REFUSED_TYPES: Final = {"time": "Spark cannot read time", "negative scale": "the scale must be between 0"}
_REFUSED_VALUES: Final = dict.fromkeys(("more than microseconds", "nanoseconds"), "cannot hold a value exactly")
_NOT_TO_ARROW: Final = {"NOT NULL field": "DataFrame.toArrow fails for a null struct with such a field"}


def test_every_value_comes_back_through_spark(
    load: Callable[..., DataFrame], client: sync.Client, shared_server: ServerProcess
) -> None:
    def read(world: Surroundings, wanted: Wanted) -> list[Row]:
        name = copy_of(world, wanted)
        try:
            return rows_of_arrow(load(name).toArrow(), wanted.schema)
        except PySparkException as error:
            raise WayRefusedError(str(error)[-800:]) from error

    world = Surroundings(client, CommandLine(shared_server.url))
    failures = []
    for layout in layouts():
        written, wrong = write(world, ARROW, layout)
        spark = WayOut("spark", read, {**_REFUSED_TYPES, **_NOT_TO_ARROW}, _REFUSED_VALUES, is_examined=False)
        failures += wrong + read_all(world, written, ARROW.name, spark)
        if not layout.is_key:
            spark = WayOut("spark", read, _REFUSED_TYPES, _REFUSED_VALUES)
            failures += check_refusals_out(world, written, spark, ARROW, every=False)
    assert not failures, "\n".join(text[:300] for text in failures[:40])
