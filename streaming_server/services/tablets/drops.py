"""What ends the calls about a table with tablets that is dropped: a tablet is closed before its table is dropped."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from scankv.model.errors import TableNotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.tables.tables import Tables

_DROP_SECONDS: Final = 5.0
"""How long a drop of the table may take to be known as the cause of an error."""


@asynccontextmanager
async def naming_drops(tables: Tables, table: TableDefinition) -> AsyncIterator[None]:
    """Raises TableNotFound instead of Unavailable if the table with tablets of the call in the block was dropped.

    Args:
        tables: The tables of the owner of the table.
        table: The table as of the begin of the call. Nothing is done for one without tablets.
    """
    try:
        yield
    except Unavailable as error:
        if table.is_divided and await _is_dropped(tables, table):
            raise TableNotFound(f'table "{table.name}" was dropped', table=table.name) from error
        raise


async def _is_dropped(tables: Tables, table: TableDefinition) -> bool:
    """Whether a table was dropped. If it is about to be, waits for the end of that for some seconds."""
    if tables.tablets.is_closed(table.name):
        try:
            async with asyncio.timeout(_DROP_SECONDS):
                await tables.table_after_changes(table.name)
        except TimeoutError:
            return False
        except TableNotFound:
            return True
    now = tables.divided(table.name)
    return now is None or now.incarnation != table.incarnation
