"""Reads the rows of single keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from aio_client._transport.retry import PASSING_ERRORS
from aio_client._transport.shared_calls import SharedCalls
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
    """Reads the stored rows of single keys of one table; concurrent calls share requests. Belongs to the event loop."""

    def __init__(self, handle: TableHandle) -> None:
        self._handle = handle
        self._calls: SharedCalls[bytes, FoundRow] = SharedCalls(self._send, lambda _: 1, _MOST_KEYS)

    async def get(self, key: bytes) -> FoundRow:
        """Reads the row of an encoded key.

        Raises:
            ScanKvError: The server's error, or the failure of the connection.
        """
        return await self._calls.call(key)

    async def _send(self, keys: Sequence[bytes]) -> Sequence[FoundRow | Exception]:
        try:
            return await self._find(keys)
        except PASSING_ERRORS:
            raise
        except ScanKvError as error:
            if len(keys) == 1:
                return [error]
        # The error may be of one key, such as that of a damaged bucket. The others get their rows.
        return [each for key in keys for each in await self._send([key])]

    async def _find(self, keys: Sequence[bytes]) -> list[FoundRow]:
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
