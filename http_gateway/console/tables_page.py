"""The list of tables: one page of it, with the rows and sizes of the tables on that page only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from http_gateway.charts.figures import number_text
from http_gateway.console.console_page import REFRESH, show
from http_gateway.console.sections import read_section
from http_gateway.parameters import Parameter, WholeNumber
from scankv.formats.amounts import size
from scankv.formats.table_sheets import Cell, rows_cell
from scankv.model.limits import MAX_SIZED_TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from aio_client import Table, TableSize
    from http_gateway.charts.history import Rates
    from http_gateway.console.sessions import Session
    from http_gateway.gateway import Gateway
    from http_gateway.parameters import Values

TABLES_PARAMETERS: Final = (
    Parameter(name="name", meaning="Text that the names of the tables contain.", default=""),
    WholeNumber(name="page", meaning="Which hundred of the tables.", default=1, low=1, high=1_000_000),
    REFRESH,
)

PAGE_TABLES: Final = MAX_SIZED_TABLES
"""The tables of one page, whose sizes are one call."""

UNKNOWN: Final = "not known"
NOT_YET: Final = "not counted yet"


def matches(name: str, text: str) -> bool:
    """Whether the name of a table contains a text. Letters count as equal in upper and lower case."""
    return text.strip().lower() in name.lower()


@dataclass(frozen=True, slots=True)
class TableList:
    """One page of the tables whose names contain a text. Immutable.

    Attributes:
        tables: The tables of the page.
        total: All tables whose names contain the text.
        number: The number of the page, from 1.
    """

    tables: Sequence[Table]
    total: int
    number: int

    @classmethod
    def of(cls, tables: Sequence[Table], text: str, number: int) -> TableList:
        """Returns a page; the last one if there are fewer."""
        found = [table for table in tables if matches(table.name, text)]
        number = min(number, max(1, -(-len(found) // PAGE_TABLES)))
        first = (number - 1) * PAGE_TABLES
        return cls(found[first : first + PAGE_TABLES], len(found), number)

    @property
    def first(self) -> int:
        """The position of the first table of the page among all tables, from 1."""
        return (self.number - 1) * PAGE_TABLES + 1

    @property
    def last(self) -> int:
        """The position of the last table of the page among all tables, from 1."""
        return self.first + len(self.tables) - 1


def size_cells(table_size: TableSize | None) -> tuple[Cell, str]:
    """Returns the cells of the rows and of the bytes of a table. None: its size did not arrive in time."""
    if table_size is None:
        return UNKNOWN, UNKNOWN
    is_unopened = table_size.rows is None and table_size.unopened_buckets
    return NOT_YET if is_unopened else rows_cell(table_size.rows), size(table_size.disk_bytes)


def rate_cells(rates: Rates | None) -> tuple[str, str]:
    """Returns the cells of the rates of a table, as they read in its charts."""
    return (UNKNOWN, UNKNOWN) if rates is None else (number_text(rates.rows_written), number_text(rates.rows_read))


def _rates_of(gateway: Gateway, session: Session, names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Returns the cells of what the gateway has sampled of tables, which the caller may read. Empty: of none."""
    history = gateway.sampler.history_for(session.base)
    rates = {name: None if history is None else history.rates_of(name, gateway.sampler.now()) for name in names}
    return {name: rate_cells(each) for name, each in rates.items()} if any(rates.values()) else {}


async def show_tables(gateway: Gateway, request: Request, values: Values) -> Response:
    """Shows the tables that the caller may read."""
    tables, damaged, absent_workers = await gateway.client._available_tables()
    listed = TableList.of(tables, values["name"], values["page"])
    names = [table.name for table in listed.tables]
    sizes = await read_section(gateway.client.table_sizes(names), "The rows and sizes")
    known: Mapping[str, TableSize] = sizes.value or {}
    return show(
        request,
        "tables.html",
        values,
        listed=listed,
        damaged=[each for each in damaged if matches(each.name, values["name"])],
        states={each.name: "partly damaged" for each in damaged if each.partial},
        absent_workers=absent_workers,
        sizes=sizes,
        cells={name: size_cells(known.get(name)) for name in names},
        is_unopened=any(each.rows is None and each.unopened_buckets for each in known.values()),
        lacks_sizes=not sizes.problem and any(name not in known for name in names),
        rates=_rates_of(gateway, request.state.session, names),
        page_tables=PAGE_TABLES,
        pages=-(-listed.total // PAGE_TABLES),
    )
