"""Which tables are on a page of the list, and how their sizes read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pytest

from aio_client import TableSize
from http_gateway.charts.history import Rates
from http_gateway.console.tables_page import TableList, rate_cells, size_cells

if TYPE_CHECKING:
    from aio_client import Table


@dataclass(frozen=True)
class Named:
    name: str


def tables(count: int) -> list[Table]:
    return [cast("Table", Named(f"game.T{number:03}")) for number in range(count)]


@pytest.mark.parametrize(
    ("count", "text", "number", "first", "last", "total", "shown"),
    [
        (0, "", 1, 1, 0, 0, 1),
        (100, "", 1, 1, 100, 100, 1),
        (205, "", 3, 201, 205, 205, 3),
        (205, "", 9, 201, 205, 205, 3),
        (205, " t20 ", 1, 1, 5, 5, 1),
        (205, "GAME.", 2, 101, 200, 205, 2),
        (205, "nothing", 4, 1, 0, 0, 1),
    ],
)
def test_a_page_has_up_to_a_hundred_of_the_tables_with_the_text(
    count: int, text: str, number: int, first: int, last: int, total: int, shown: int
) -> None:
    found = TableList.of(tables(count), text, number)
    assert (found.first, found.last, found.total, found.number) == (first, last, total, shown)
    assert len(found.tables) == last - first + 1


@pytest.mark.parametrize(
    ("rows", "unopened", "cell"), [(31, 0, 31), (0, 0, 0), (None, 0, "not counted"), (None, 2, "not counted yet")]
)
def test_rows_are_a_number_or_why_there_is_none(rows: int | None, unopened: int, cell: int | str) -> None:
    assert size_cells(TableSize(rows=rows, disk_bytes=1234, unopened_buckets=unopened)) == (cell, "1.2 kB")
    assert size_cells(None) == ("not known", "not known")


def test_rates_read_as_in_the_charts() -> None:
    assert rate_cells(Rates(964.0, 916_814.2)) == ("964", "916,814")
    assert rate_cells(Rates(0.0, 0.25)) == ("0", "0.25")
    assert rate_cells(None) == ("not known", "not known")
