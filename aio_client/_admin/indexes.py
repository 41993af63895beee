"""Indexes of a table: their columns, how far their builds have come, and waiting for a build."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from aio_client._input.arguments import is_text
from aio_client._transport.repeatable_calls import call_again
from scankv.model.errors import InvalidRequest, TableNotFound, UsageError
from scankv.v1 import table_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from aio_client._transport.transport import Transport

Indexes: TypeAlias = Sequence[str | Sequence[str]]
"""Indexes: for each, the name of its column, or the names of its columns in order."""

_FIRST_PAUSE_SECONDS: Final = 0.02
_LONGEST_PAUSE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStatus:
    """How far the build of an index has come. The index is used when it is ready in every bucket that is read.

    Attributes:
        columns: The columns of the index, in order.
        ready: Whether the index is complete, and used.
        rows_done: About how many of the table's rows are in the index.
        rows: The number of rows in the table. None if the table does not count them; see `BucketStats.rows`.
        failure: Why the index cannot be built, in which case it is not used and should be dropped. None otherwise.
    """

    columns: tuple[str, ...]
    ready: bool
    rows_done: int
    rows: int | None
    failure: str | None


def index_messages(indexes: Indexes, option: str) -> list[table_pb2.IndexColumns]:
    """Returns the columns of each index as requests carry them.

    Args:
        indexes: The caller's argument; a text is the only column of a single index.
        option: The argument's name, for messages.

    Raises:
        UsageError: The argument does not consist of names.
    """
    given = (indexes,) if isinstance(indexes, str) else indexes
    if not isinstance(given, Sequence):
        raise UsageError(_invalid_indexes_text(option, given), option=option)
    messages = []
    for columns in given:
        names = (columns,) if isinstance(columns, str) else columns
        if not isinstance(names, Sequence) or not all(map(is_text, names)):
            raise UsageError(_invalid_indexes_text(option, columns), option=option)
        messages.append(table_pb2.IndexColumns(columns=names))
    return messages


def index_statuses(response: table_pb2.GetTableResponse) -> list[IndexStatus]:
    """Returns the states of the indexes in a description with statistics, in the order of the table's indexes."""
    columns = {index.id: tuple(index.columns) for index in response.table.indexes}
    return [
        IndexStatus(
            columns=columns[status.id],
            ready=status.ready,
            rows_done=status.rows_done,
            rows=status.rows if status.HasField("rows") else None,
            failure=status.failure or None,
        )
        for status in response.indexes
    ]


async def wait_until_built(
    transport: Transport,
    table: table_pb2.Table,
    added: Collection[tuple[str, ...]],
    on_progress: Callable[[list[IndexStatus]], None] | None,
) -> None:
    """Waits until some indexes are ready, however long it takes, also while the server restarts.

    Args:
        transport: The client's connection.
        table: The description of the table that has the indexes.
        added: The columns of each index.
        on_progress: Called with the states of these indexes each time the server reports them.

    Raises:
        InvalidRequest: An index cannot be built, or was dropped during the wait.
        TableNotFound: The table was dropped during the wait.
        ConnectionFailed: No answer came for the operation timeout; the server continues to build the indexes.
    """
    ids = {index.id for index in table.indexes if tuple(index.columns) in added}
    pause = _FIRST_PAUSE_SECONDS
    while True:
        response = await _describe(transport, table.name)
        if response.table.incarnation != table.incarnation:
            raise TableNotFound(f"table {table.name} was dropped while its indexes were built", table=table.name)
        if not ids <= {index.id for index in response.table.indexes}:
            raise InvalidRequest(f"an index of {table.name} was dropped while it was built", table=table.name)
        ours = [
            status
            for status, message in zip(index_statuses(response), response.indexes, strict=True)
            if message.id in ids
        ]
        if on_progress is not None:
            on_progress(ours)
        for status in ours:
            if status.failure is not None:
                raise InvalidRequest(_failure_text(table.name, status), table=table.name)
        if all(status.ready for status in ours):
            return
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


async def _describe(transport: Transport, name: str) -> table_pb2.GetTableResponse:
    request = table_pb2.GetTableRequest(name=name, statistics=True)
    return await call_again(transport, lambda: transport.services.tables.GetTable, request)


def _invalid_indexes_text(option: str, given: object) -> str:
    return f'{option} must be a list of columns or lists of columns, as ["score", ("league", "score")], not {given!r}'


def _failure_text(table: str, status: IndexStatus) -> str:
    columns = ", ".join(status.columns)
    return (
        f"the index on ({columns}) of {table} cannot be built: {status.failure}; it is not used; drop it with "
        f"alter_table(..., drop_indexes=[{status.columns!r}]), or scankv indexes drop {table} "
        f"{','.join(status.columns)}"
    )
