"""Reads the rows of few keys, in requests that concurrent calls share."""

from __future__ import annotations

from functools import partial
from itertools import groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import pyarrow as pa

from aio_client._input.isolation import isolation_message
from aio_client._input.requests import to_ipc
from aio_client._queries.lookup import LookupAnswer
from aio_client._transport.retry import PASSING_ERRORS
from aio_client._transport.shared_calls import SharedCalls
from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.counts import counted
from scankv.model.errors import ProtocolViolation, ScanKvError
from scankv.model.names import tablet_name
from scankv.v1 import lookup_pb2

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aio_client._table.handle import TableHandle
    from scankv.model.scans.isolation import Isolation

_Keys = TypeVar("_Keys")
_Found = TypeVar("_Found")

_MOST_KEYS: Final = 128
"""The most keys that share a call. The server answers this many in a millisecond."""


class FoundEncodedRows(NamedTuple):
    """The rows of some keys.

    Attributes:
        rows: For each key, the row in the row format, with all columns of its schema. None: no row has the key.
        buckets: For each key, its bucket.
        offsets: For these and maybe other buckets, the offset of the first change that the rows do not show.
        table_incarnation: The table incarnation that the rows, the id of their schema, and the offsets belong to.
        schema_id: The id of the schema of the rows.
    """

    rows: list[bytes | None]
    buckets: list[int]
    offsets: dict[int, int]
    table_incarnation: str
    schema_id: int

    @property
    def log_offsets(self) -> LogOffsets:
        """For every bucket of a key, the offset of the first change that the rows do not show."""
        offsets = LogOffsets()
        offsets.advance({bucket: self.offsets[bucket] for bucket in self.buckets}, self.table_incarnation)
        return offsets


class RowGets:
    """Reads rows of one table by few keys; concurrent calls share requests. Belongs to the event loop.

    Encoded keys and Arrow keys are in different requests, because their answers have different forms. Encoded keys of
    one tablet go to its owner.

    Args:
        handle: The table.
        isolation: The isolation of all requests.
    """

    def __init__(self, handle: TableHandle, isolation: Isolation) -> None:
        self._handle = handle
        self._tracer = handle.transport.tracer
        self._isolation = isolation_message(isolation)
        # By tablet. None: keys of several tablets, or of a table without tablets.
        self._encoded: dict[int | None, SharedCalls[Sequence[bytes], FoundEncodedRows]] = {}
        self._arrow: SharedCalls[pa.RecordBatch, LookupAnswer] = SharedCalls(
            _each_for_itself(self._find_arrow), attrgetter("num_rows"), _MOST_KEYS, self._tracer
        )

    async def get(self, keys: Sequence[bytes]) -> FoundEncodedRows:
        """Reads the rows of encoded keys, those of one bucket at one instant.

        Raises:
            ScanKvError: The server's error, or the failure of the connection.
        """
        tablet = self._handle.read_shape.tablet_of(keys)
        if tablet not in self._encoded:
            find = _each_for_itself(partial(self._find_encoded, tablet))
            self._encoded[tablet] = SharedCalls(find, len, _MOST_KEYS, self._tracer)
        return await self._encoded[tablet].call(keys)

    async def look_up(self, keys: pa.RecordBatch) -> LookupAnswer:
        """Reads the rows of keys in Arrow form, those of one bucket at one instant. The answer has no log offsets.

        Raises:
            ScanKvError: As `get`.
        """
        return await self._arrow.call(keys)

    async def _find_encoded(self, tablet: int | None, calls: Sequence[Sequence[bytes]]) -> list[FoundEncodedRows]:
        keys = [key for each in calls for key in each]
        response = None if tablet is None else await self._ask_tablet(tablet, keys)
        if response is None:
            response = await self._request(encoded_keys=keys)
        found, buckets, offsets = response.found, response.buckets, dict(response.log_offsets)
        if len(found) != len(keys) or sum(found) != len(response.encoded_rows) or len(buckets) != len(keys):
            raise ProtocolViolation(
                f"the server answered a lookup of {counted(len(keys), 'key')} for {counted(len(found), 'key')} in "
                f"{counted(len(buckets), 'bucket')}, with {counted(len(response.encoded_rows), 'row')}"
            )
        if not offsets.keys() >= set(buckets):
            raise ProtocolViolation("the server answered a lookup without the log offsets of all buckets")
        stored = iter(response.encoded_rows)
        rows = (next(stored) if each else None for each in found)
        of_key = iter(buckets)
        return [
            FoundEncodedRows(
                rows=list(islice(rows, len(each))),
                buckets=list(islice(of_key, len(each))),
                offsets=offsets,
                table_incarnation=response.table_incarnation,
                schema_id=response.schema_id,
            )
            for each in calls
        ]

    async def _find_arrow(self, calls: Sequence[pa.RecordBatch]) -> list[LookupAnswer]:
        answers: list[LookupAnswer] = []
        # The key columns differ if the table was created again, and a caller has asked for its shape in the meantime.
        for _, group in groupby(calls, key=attrgetter("schema")):
            same = list(group)
            keys = pa.concat_batches(same)
            response = await self._request(keys=to_ipc(keys))
            answers += LookupAnswer.decode(keys, response).split([each.num_rows for each in same])
        return answers

    async def _ask_tablet(self, tablet: int, keys: Sequence[bytes]) -> lookup_pb2.LookupResponse | None:
        """Reads the rows of encoded keys at the owner of their tablet. None: ask the owner of the table.

        It knows what is wrong: the table may have been created again, or its tablets may have other owners.
        """
        description = self._handle.read_shape.description
        request = lookup_pb2.LookupRequest(
            table=tablet_name(self._handle.name, tablet), encoded_keys=keys, isolation=self._isolation
        )
        transport = await self._handle.transport.to_tablet(description, tablet)
        try:
            return await transport.call(lambda: transport.services.lookups.Lookup, request)
        except PASSING_ERRORS:
            raise
        except ScanKvError:
            return None

    async def _request(self, *, keys: bytes = b"", encoded_keys: Sequence[bytes] = ()) -> lookup_pb2.LookupResponse:
        transport = self._handle.transport
        request = lookup_pb2.LookupRequest(
            table=self._handle.name, keys=keys, encoded_keys=encoded_keys, isolation=self._isolation
        )
        return await transport.call(lambda: transport.services.lookups.Lookup, request)


def _each_for_itself(
    find: Callable[[Sequence[_Keys]], Awaitable[Sequence[_Found]]],
) -> Callable[[Sequence[_Keys]], Awaitable[Sequence[_Found | Exception]]]:
    """Returns a function that gives each call its own result or error, as if it had been made alone."""

    async def send(calls: Sequence[_Keys]) -> Sequence[_Found | Exception]:
        try:
            return await find(calls)
        except PASSING_ERRORS:
            raise
        except ScanKvError as error:
            if len(calls) == 1:
                return [error]
            # The error may be of one key, such as that of a damaged bucket. The other calls get their rows.
            return [each for call in calls for each in await send([call])]

    return send
