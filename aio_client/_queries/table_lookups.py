"""Reads rows of a table by their keys."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from aio_client._input.isolation import isolation_message
from aio_client._input.keys import is_one_key, keys_of
from aio_client._input.other_rows import to_pylist
from aio_client._input.requests import LOOKUP_KEYS, cut, to_ipc
from aio_client._queries.lookup import LookupAnswer, VersionedRows, join_answers, look_up_pieces, oldest_offsets
from aio_client._queries.row_gets import RowGets
from aio_client._table.handle import TableMethods
from aio_client._table.python_rows import MAX_FEW_ROWS
from aio_client._table.shape import TableShape
from aio_client._transport.shared_calls import SharedCalls
from scankv.model.errors import InvalidKey, RequestTooLarge, UnknownField, UsageError
from scankv.model.scans.isolation import ISOLATIONS, check_isolation
from scankv.v1 import lookup_pb2

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import pyarrow as pa

    from aio_client._queries.row_gets import FoundEncodedRows
    from aio_client._table.handle import TableHandle
    from aio_client._table.python_rows import PythonRows
    from scankv.model.scans.isolation import Isolation


class LookupMethods(TableMethods):
    """Reads rows by their keys. What the methods return is durable, unless they are asked for the latest rows."""

    def __init__(self, handle: TableHandle) -> None:
        super().__init__(handle)
        self._gets: dict[Isolation, RowGets] = {each: RowGets(handle, each) for each in ISOLATIONS}
        # Callers that find the shape outdated at the same time share a call for the next one.
        self._refreshes: SharedCalls[TableShape, None] = SharedCalls(self._refresh, lambda _: 0, 0)

    async def get(self, key: object, *, isolation: Isolation = "read_committed") -> dict[str, Any] | None:
        """Reads the row with this key. Returns it as a dictionary, or None if no row has the key.

        Concurrent calls on one `Table` share requests: keys that are asked for while a request is in flight go out with
        the next one. A row that is returned is durable, unless `isolation` says otherwise.

        Args:
            key: A scalar if the key has one column, else a tuple in key order or a dictionary of all key columns.
            isolation: As for `Scan.isolation`: "read_latest" returns the row as it is applied, without waiting until it
                is durable.

        Raises:
            InvalidKey: The key is incomplete, null, or not of its columns' types.
            NoPrimaryKey: The table has no primary key.
            UsageError: `isolation` has another value.
        """
        check_isolation(isolation)
        if not is_one_key(key):
            raise InvalidKey(f"get takes one key, not a {type(key).__name__}: use lookup, which takes several")
        self._handle.read_shape.require_key("get finds rows by their key: scan the table with a filter")
        python_rows = self._handle.read_rows
        encoded = python_rows.encode_key(key)
        found = None if encoded is None else await self._get_encoded([encoded], isolation)
        if found is not None:
            current = await self._shape_of(found, python_rows)
            if current is not None:
                (row,) = found.rows
                if row is None:
                    return None
                decoded = current.decode(row)
                if decoded is not None:
                    return decoded
        rows = to_pylist(await self.lookup(key, isolation=isolation))
        return rows[0] if rows else None

    @overload
    async def lookup(
        self,
        keys: object,
        *,
        missing: Literal["omit", "null"] = "omit",
        with_version: Literal[False] = False,
        isolation: Isolation = "read_committed",
    ) -> pa.Table: ...
    @overload
    async def lookup(
        self,
        keys: object,
        *,
        missing: Literal["omit", "null"] = "omit",
        with_version: Literal[True],
        isolation: Isolation = "read_committed",
    ) -> VersionedRows: ...
    @overload
    async def lookup(
        self,
        keys: object,
        *,
        missing: Literal["omit", "null"] = "omit",
        with_version: bool,
        isolation: Isolation = "read_committed",
    ) -> pa.Table | VersionedRows: ...
    async def lookup(
        self,
        keys: object,
        *,
        missing: Literal["omit", "null"] = "omit",
        with_version: bool = False,
        isolation: Isolation = "read_committed",
    ) -> pa.Table | VersionedRows:
        """Reads the rows with these keys.

        The rows returned are durable, unless `isolation` says otherwise. Up to 10,000 keys go into one request. Keys of
        one bucket in one request are read at one instant; different buckets are read one after another. Concurrent
        calls with up to 100 keys share requests as calls of `get` do.

        Args:
            keys: A key as for `get`, an iterable of keys, an Arrow or NumPy array if the key has one column, or
                Arrow data or a DataFrame with the key columns, whose other columns are ignored.
            missing: What to return for a key without a row: "omit" returns nothing, "null" returns a row that is null
                except for its key, so that the result has as many rows as there are keys.
            with_version: Whether to return the rows with the log offsets that they are as of, for
                `upsert(if_version=...)` of these keys.
            isolation: As for `get`.

        Returns:
            All columns of the rows found, in the order of `keys`. The row of a key that is given twice appears twice.
            With `with_version`, a `VersionedRows`.

        Raises:
            InvalidKey: A key is incomplete, null, or not of its columns' types.
            NoPrimaryKey: The table has no primary key.
            UsageError: `missing` is neither "omit" nor "null", or `isolation` has another value.
        """
        check_isolation(isolation)
        if missing not in ("omit", "null"):
            raise UsageError(f'missing must be "omit" or "null", not {missing!r}', option="missing")
        self._handle.read_shape.require_key("lookup finds rows by their keys: scan the table with a filter")
        few = await self._lookup_few(keys, isolation, fill_missing=missing == "null")
        if few is not None:
            return few if with_version else few.rows
        batch = await asyncio.to_thread(keys_of, keys, self._handle.read_shape.key_schema)
        alone = with_version or batch.num_rows > MAX_FEW_ROWS
        find = partial(self._find, isolation) if alone else self._gets[isolation].look_up
        answers = await look_up_pieces(
            partial(_look_up, find),
            list(cut([batch], max_rows=LOOKUP_KEYS)),
            self._handle.name,
            self._handle.transport.config.operation_timeout,
        )
        rows = join_answers(answers, self._handle.read_shape.schema, fill_missing=missing == "null")
        return VersionedRows(rows, oldest_offsets(answers)) if with_version else rows

    async def _lookup_few(self, keys: object, isolation: Isolation, *, fill_missing: bool) -> VersionedRows | None:
        """Reads the rows of few keys in a request that concurrent calls share. None: they need Arrow's conversions."""
        python_rows = self._handle.read_rows
        encoded = python_rows.encode_keys(keys) if python_rows.is_exact else None
        if encoded is None:
            return None
        try:
            found = await self._get_encoded(encoded, isolation)
        except RequestTooLarge:
            return None
        if found is None:
            return None
        current = await self._shape_of(found, python_rows)
        if current is None or not current.is_exact:
            return None
        if fill_missing:
            rows = current.to_filled_table(encoded, found.rows)
        else:
            rows = current.to_table([row for row in found.rows if row is not None])
        return None if rows is None else VersionedRows(rows, found.log_offsets)

    async def _get_encoded(self, keys: Sequence[bytes], isolation: Isolation) -> FoundEncodedRows | None:
        """Reads the rows of encoded keys. None: the server does not know encoded keys, as in version 0.1.0."""
        transport = self._handle.transport
        if not transport.takes_encoded_reads:
            return None
        try:
            return await self._gets[isolation].get(keys)
        except UnknownField:
            if isolation != "read_committed":
                raise  # The server may know encoded keys, but not the isolation.
            transport.takes_encoded_reads = False
            return None

    async def _shape_of(self, found: FoundEncodedRows, asked: PythonRows) -> PythonRows | None:
        """Returns the decoder of the rows found. None: the keys must be encoded again.

        If the table was altered, or dropped and created again, the shape is read again.

        Args:
            found: The rows.
            asked: The encoder of their keys.
        """
        current = self._handle.read_rows
        if not _fits(found, current):
            await self._refreshes.call(current.shape)
            current = self._handle.read_rows
        # The same bytes may be another key for other key columns.
        same_keys = current is asked or current.shape.key_schema == asked.shape.key_schema
        return current if same_keys and _fits(found, current) else None

    async def _refresh(self, outdated: Sequence[TableShape]) -> Sequence[None]:
        """Reads the shape again, unless that was done since a caller found it outdated.

        A table that was created again with another key keeps its shape, so that its keys are refused.
        """
        known = self._handle.read_shape
        if any(shape is known for shape in outdated):
            shape = TableShape.of((await self._handle.describe()).table)
            if shape.key_schema == known.key_schema and self._handle.read_shape is known:
                self._handle.read_shape = shape
        return [None] * len(outdated)

    async def _find(self, isolation: Isolation, keys: pa.RecordBatch) -> LookupAnswer:
        """Reads the rows of some keys in a request of its own."""
        transport = self._handle.transport
        request = lookup_pb2.LookupRequest(
            table=self._handle.name, keys=to_ipc(keys), isolation=isolation_message(isolation)
        )
        response = await transport.call(lambda: transport.services.lookups.Lookup, request)
        return LookupAnswer.decode(keys, response)


async def _look_up(
    find: Callable[[pa.RecordBatch], Awaitable[LookupAnswer]], keys: pa.RecordBatch
) -> list[LookupAnswer]:
    """Reads the rows of some keys. Halves the request as long as its rows do not fit into one answer."""
    try:
        return [await find(keys)]
    except RequestTooLarge:
        if keys.num_rows == 1:
            raise
        half = keys.num_rows // 2
        return await _look_up(find, keys.slice(0, half)) + await _look_up(find, keys.slice(half))


def _fits(found: FoundEncodedRows, python_rows: PythonRows) -> bool:
    known = python_rows.shape.description
    return found.table_incarnation == known.incarnation and found.schema_id == known.schema_id
