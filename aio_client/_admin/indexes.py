"""Indexes of a table: named by their columns, how far they are built, and waiting until they are."""

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
"""Some indexes: of each the name of its column, or the names of its columns, the first one first."""

_FIRST_PAUSE_SECONDS: Final = 0.02
_LONGEST_PAUSE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStatus:
    """How far an index is built. It is used when it is ready in every bucket that is read.

    Attributes:
        columns: The columns it is ordered by, the first one first.
        ready: Whether it is whole, and used.
        rows_done: About how many of the table's rows it has.
        rows: The table's rows; None where they are not counted, see `BucketStatistics`.
        failure: Why it cannot be built; None otherwise. It is not used, and is to be dropped.
    """

    columns: tuple[str, ...]
    ready: bool
    rows_done: int
    rows: int | None
    failure: str | None


def index_messages(indexes: Indexes, option: str) -> list[table_pb2.IndexColumns]:
    """The columns of each index as the server is sent them.

    Args:
        indexes: What the caller gave; a text is the one index on that column.
        option: The argument it was given as, for the message.

    Raises:
        UsageError: It is not made of names.
    """
    given = (indexes,) if isinstance(indexes, str) else indexes
    if not isinstance(given, Sequence):
        raise UsageError(_not_indexes(option, given), option=option)
    messages = []
    for columns in given:
        names = (columns,) if isinstance(columns, str) else columns
        if not isinstance(names, Sequence) or not all(map(is_text, names)):
            raise UsageError(_not_indexes(option, columns), option=option)
        messages.append(table_pb2.IndexColumns(columns=names))
    return messages


def index_statuses(response: table_pb2.GetTableResponse) -> list[IndexStatus]:
    """The states in an answer that was asked for with statistics, in the order of the table's indexes."""
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
    """Waits until some indexes are ready, for as long as it takes; also while the server restarts.

    Args:
        transport: The client's connection.
        table: The table as it was when the indexes were there.
        added: The columns of each index.
        on_progress: Given their states whenever the server has been asked.

    Raises:
        InvalidRequest: One cannot be built, or was dropped meanwhile.
        TableNotFound: The table was dropped meanwhile.
        ConnectionFailed: There was no answer for the operation timeout; the server goes on building.
    """
    ids = {index.id for index in table.indexes if tuple(index.columns) in added}
    pause = _FIRST_PAUSE_SECONDS
    while True:
        response = await _described(transport, table.name)
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
                raise InvalidRequest(_failed(table.name, status), table=table.name)
        if all(status.ready for status in ours):
            return
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


async def _described(transport: Transport, name: str) -> table_pb2.GetTableResponse:
    request = table_pb2.GetTableRequest(name=name, statistics=True)
    return await call_again(transport, lambda: transport.services.tables.GetTable, request)


def _not_indexes(option: str, given: object) -> str:
    return f'{option} is a list of indexes, each a column or several, as ["score", ("league", "score")], not {given!r}'


def _failed(table: str, status: IndexStatus) -> str:
    columns = ", ".join(status.columns)
    return (
        f"the index on ({columns}) of {table} cannot be built: {status.failure}; it is not used, and is to be dropped: "
        f"alter_table(..., drop_indexes=[{status.columns!r}]), or scankv index drop {table} {','.join(status.columns)}"
    )
