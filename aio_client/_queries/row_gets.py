"""Reads the rows of few keys."""

from __future__ import annotations

from itertools import islice
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


class FoundEncodedRows(NamedTuple):
    """The rows of some keys.

    Attributes:
        rows: For each key, the row in the row format, with all columns of the schema that it names. None: there is no
            row.
        table_incarnation: The table incarnation that the rows, and the ids of their schemas, belong to.
    """

    rows: list[bytes | None]
    table_incarnation: str


class RowGets:
    """Reads the stored rows of few keys of one table; concurrent calls share requests. Belongs to the event loop."""

    def __init__(self, handle: TableHandle) -> None:
        self._handle = handle
        self._calls: SharedCalls[Sequence[bytes], FoundEncodedRows] = SharedCalls(self._send, len, _MOST_KEYS)

    async def get(self, keys: Sequence[bytes]) -> FoundEncodedRows:
        """Reads the rows of encoded keys, those of one bucket at one instant.

        Raises:
            ScanKvError: The server's error, or the failure of the connection.
        """
        return await self._calls.call(keys)

    async def _send(self, calls: Sequence[Sequence[bytes]]) -> Sequence[FoundEncodedRows | Exception]:
        try:
            found = await self._find([key for keys in calls for key in keys])
        except PASSING_ERRORS:
            raise
        except ScanKvError as error:
            if len(calls) == 1:
                return [error]
            # The error may be of one key, such as that of a damaged bucket. The other calls get their rows.
            return [each for keys in calls for each in await self._send([keys])]
        if len(calls) == 1:
            return [found]
        rows = iter(found.rows)
        return [FoundEncodedRows(list(islice(rows, len(keys))), found.table_incarnation) for keys in calls]

    async def _find(self, keys: Sequence[bytes]) -> FoundEncodedRows:
        transport = self._handle.transport
        request = lookup_pb2.LookupRequest(table=self._handle.name, encoded_keys=keys)
        response = await transport.call(lambda: transport.services.lookups.Lookup, request)
        found = response.found
        if len(found) != len(keys) or sum(found) != len(response.encoded_rows):
            raise ProtocolViolation(
                f"the server answered a lookup of {len(keys):,} keys for {len(found):,} keys, with "
                f"{len(response.encoded_rows):,} rows"
            )
        rows = iter(response.encoded_rows)
        return FoundEncodedRows([next(rows) if each else None for each in found], response.table_incarnation)
