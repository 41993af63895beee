"""Looks up rows as a transaction would leave them: the committed rows with its staged rows merged in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.errors import RequestTooLarge
from scankv.model.limits import MAX_REQUEST_BYTES
from streaming_server.engine.bucket.call_point import now_of
from streaming_server.engine.merging.expired_rows import UnexpiredRows
from streaming_server.engine.transactions.staged_rows import read_staged_rows
from streaming_server.engine.writes.bucket_steps import total_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from streaming_server.engine.merging.few_rows import BucketRows
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tasks.executor import StorageExecutor


class StagedRowView:
    """The stored rows of some encoded keys, with staged rows merged in. Not thread-safe."""

    def __init__(self, keys: Sequence[bytes], rows: Sequence[bytes | None]) -> None:
        self._rows = dict(zip(keys, rows, strict=True))
        self._keys = pa.array(list(self._rows), pa.binary())

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Returns the rows of some of the keys, None where no row exists."""
        return [self._rows[key] for key in keys]

    def has_rows_among(self, keys: list[bytes]) -> bool:
        """See `StoredRows`."""
        return any(self._rows.values())

    def merge(self, part: BucketRows, table: LiveTable) -> None:
        """Merges in the staged rows of these keys. Blocks.

        Raises:
            InvalidRequest, RequestTooLarge: The rows cannot be merged.
        """
        wanted = pc.is_in(part.key_array, value_set=self._keys).to_numpy(zero_copy_only=False)
        if wanted.any():
            merger = table.writes.merger.without_indexes()
            now_micros = now_of(table.state.clock)
            rows = UnexpiredRows(self, merger.codec, now_micros) if table.definition.expiry is not None else self
            change = merger.merge(rows, part.for_codec(merger.codec.rows).where(wanted))
            self._rows.update(zip(change.put_keys.to_pylist(), change.put_values.to_pylist(), strict=True))
            self._rows.update(dict.fromkeys(change.delete_keys.to_pylist()))


async def with_staged(
    table: LiveTable,
    files: Sequence[tuple[Path, int]],
    executor: StorageExecutor,
    keys: Sequence[bytes],
    rows: Sequence[bytes | None],
) -> list[bytes | None]:
    """Returns stored rows with the staged rows of some files merged in. Memory: these rows, and two requests.

    Args:
        table: The table.
        files: The file of each part, and how many of its requests are merged.
        executor: Runs blocking work.
        keys: The encoded keys.
        rows: The stored rows, None where no row exists.

    Raises:
        InvalidRequest, RequestTooLarge: The rows cannot be merged, or do not fit into an answer.
        DataLoss: A staged request is damaged.
    """
    known, name = StagedRowView(keys, rows), table.definition.name
    async with read_staged_rows(files, {name: table}, executor, lambda request: request.has_rows) as requests:
        async for request in requests:
            for part in request.parts:
                await executor.run(known.merge, part, table)
    found = known.get(list(keys))
    if total_bytes(found) > MAX_REQUEST_BYTES:
        raise RequestTooLarge(
            f"the answer has more than {MAX_REQUEST_BYTES:,} bytes; the limit is {MAX_REQUEST_BYTES:,}: ask for fewer "
            "keys"
        )
    return found
