"""The rows of single keys: calls that are made while one is in flight share the next one."""

from __future__ import annotations

import asyncio
from copy import copy
from typing import TYPE_CHECKING, Final, NamedTuple

from aio_client._transport.retry import PASSING_ERRORS
from scankv.model.errors import ProtocolViolation, ScanKvError
from scankv.v1 import lookup_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aio_client._table.handle import TableHandle

_MOST_KEYS: Final = 128
"""The most keys that share a call: the server answers so many in a millisecond."""


class FoundRow(NamedTuple):
    """The row of a key.

    Attributes:
        row: The row in the row format, with all columns of the schema that it names. None: there is no row.
        table_incarnation: The table incarnation that the row, and the id of its schema, belong to.
    """

    row: bytes | None
    table_incarnation: str


class RowGets:
    """Reads the stored rows of single keys of one table. Belongs to the event loop of the client.

    A lone call is sent at once. Keys that are asked for while a call is in flight go out together with the next one, so
    nothing waits for a timer, and the more callers there are, the fewer calls they need.
    """

    def __init__(self, handle: TableHandle) -> None:
        self._handle = handle
        self._is_busy = False
        self._waiting: list[tuple[bytes, asyncio.Future[FoundRow]]] = []
        self._draining: asyncio.Task[None] | None = None

    async def get(self, key: bytes) -> FoundRow:
        """Reads the row of an encoded key.

        Raises:
            ScanKvError: The server's error, or the failure of the connection.
        """
        if self._is_busy:
            future: asyncio.Future[FoundRow] = asyncio.get_running_loop().create_future()
            self._waiting.append((key, future))
            return await future
        self._is_busy = True
        try:
            (row,) = await self._call([key])
        finally:
            self._send_waiting()
        return row

    def _send_waiting(self) -> None:
        if self._waiting:
            self._draining = asyncio.create_task(self._drain())
        else:
            self._is_busy = False

    async def _drain(self) -> None:
        """Sends all waiting keys, one call after another."""
        batch: list[tuple[bytes, asyncio.Future[FoundRow]]] = []
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_MOST_KEYS], self._waiting[_MOST_KEYS:]
                # A caller may have given up.
                batch = [(key, future) for key, future in batch if not future.done()]
                if batch:
                    await self._answer(batch)
                    # Callers that now have their row may ask for another at once. Otherwise the first of them would
                    # make a lone call, for which all others would have to wait.
                    await asyncio.sleep(0)
        finally:
            # Callers wait for nothing else, so none may be left, whatever has ended this task.
            for _, future in (*batch, *self._waiting):
                future.cancel()
            self._waiting = []
            self._is_busy = False

    async def _answer(self, batch: Sequence[tuple[bytes, asyncio.Future[FoundRow]]]) -> None:
        try:
            rows = await self._call([key for key, _ in batch])
        except ScanKvError as error:
            if len(batch) == 1 or isinstance(error, PASSING_ERRORS):
                for _, future in batch:
                    if not future.done():
                        future.set_exception(copy(error))
                return
            # The error may be of one key, such as that of a damaged bucket. The others get their rows.
            for each in batch:
                await self._answer([each])
            return
        for (_, future), row in zip(batch, rows, strict=True):
            if not future.done():
                future.set_result(row)

    async def _call(self, keys: Sequence[bytes]) -> list[FoundRow]:
        transport = self._handle.transport
        request = lookup_pb2.LookupRequest(table=self._handle.name, encoded_keys=keys)
        response = await transport.call(lambda: transport.services.lookups.Lookup, request)
        found = response.found
        if len(found) != len(keys) or sum(found) != len(response.encoded_rows):
            raise ProtocolViolation(
                f"the server answered a lookup of {len(keys):,} keys for {len(found):,} keys, with "
                f"{len(response.encoded_rows):,} rows"
            )
        rows, incarnation = iter(response.encoded_rows), response.table_incarnation
        return [FoundRow(next(rows) if each else None, incarnation) for each in found]
