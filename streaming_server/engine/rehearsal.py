"""What merging would make of a bucket, without writing it: a refusal is found before a transaction is decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streaming_server.engine.bucket_steps import merged, step_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streaming_server.engine.merging.engine import Engines
    from streaming_server.engine.prepare import PreparedRows
    from streaming_server.storage.bucket import Bucket, BucketState
    from streaming_server.storage.index_codec import IndexCodec
    from streaming_server.storage.row_codec import RowCodec


class Rehearsal:
    """A bucket with rows merged that are not written. Not thread-safe; memory: the merged rows."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._rows: dict[bytes, bytes | None] = {}

    @property
    def state(self) -> BucketState:
        """The bucket's, without these rows."""
        return self._bucket.state

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """The stored rows of some encoded keys as they would be, None where there would be none."""
        missing = [key for key in keys if key not in self._rows]
        stored = dict(zip(missing, self._bucket.get(missing), strict=True)) if missing else {}
        return [stored[key] if key in stored else self._rows[key] for key in keys]

    def merge(self, rows: PreparedRows, codec: RowCodec, indexes: Sequence[IndexCodec], engines: Engines) -> None:
        """Merges rows in. Blocks; hold the bucket's mutex.

        Raises:
            InvalidRequest, RequestTooLarge: They cannot be merged.
        """
        rows = rows.for_codec(codec)
        step = step_rows(self.state, len(indexes))
        for start in range(0, len(rows.keys), step):
            change = merged(self, rows.slice(start, step), codec, indexes, engines)
            self._rows.update(zip(change.put_keys.to_pylist(), change.put_values.to_pylist(), strict=True))
            self._rows.update(dict.fromkeys(change.delete_keys.to_pylist()))
