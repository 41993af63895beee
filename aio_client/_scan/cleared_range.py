"""Ranges of keys whose rows were deleted at once, for readers of changes that hold rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from aio_client._input.keys import keys_of
from scankv.model.keys.key_codec import KeyCodec
from scankv.model.keys.key_parts import range_text
from scankv.model.keys.key_range import KeyRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aio_client._scan.shards import ScannedTable
    from scankv.v1 import scan_pb2


@dataclass(frozen=True, slots=True)
class ClearedRange:
    """A range of keys of one bucket whose rows were deleted without a change for each row. Immutable.

    See `ScanStream.on_cleared`.

    Attributes:
        bucket: The bucket. Rows of other buckets with keys in the range are not deleted.
        offset: The log offset of the deletion.
        start: The first encoded key. None: from the first key of the bucket.
        end: The encoded key after the last one. None: to the last key of the bucket.
    """

    bucket: int
    offset: int
    start: bytes | None
    end: bytes | None
    _table: ScannedTable

    @classmethod
    def of(cls, message: scan_pb2.ClearedRange, table: ScannedTable) -> ClearedRange:
        """Reads a range of a table from its message."""
        keys = message.keys
        start = keys.start if keys.HasField("start") else None
        end = keys.end if keys.HasField("end") else None
        return cls(message.bucket, message.offset, start, end, table)

    @property
    def text(self) -> str:
        """The range, for people: `day = 3 and id >= 5`, or `all keys`."""
        schema = self._table.key_schema
        return range_text(self.keys, KeyCodec(schema.types, schema.names))

    def contains(self, keys: object) -> pa.BooleanArray:
        """Returns which of some keys are in the range, and in its bucket.

        Args:
            keys: The keys, as for `Table.lookup`, or rows.

        Returns:
            A boolean for each key, in their order.

        Raises:
            InvalidKey: A key is incomplete, null, or not of its columns' types.
        """
        schema = self._table.key_schema
        encoded = KeyCodec(schema.types, schema.names).encode(keys_of(keys, schema).columns).to_pylist()
        inside = np.zeros(len(encoded), np.bool_)
        inside[self.indices_of(encoded)] = True
        return pa.array(inside)

    def indices_of(self, encoded: Sequence[bytes]) -> list[int]:
        """Returns the indices of the encoded primary keys that are in the range, and in its bucket."""
        first, end = self.start or b"", self.end
        found = [place for place, key in enumerate(encoded) if first <= key and (end is None or key < end)]
        if not found:
            return found
        buckets = self._table.places.buckets_of([encoded[place] for place in found])
        return [place for place, bucket in zip(found, buckets, strict=True) if bucket == self.bucket]

    @property
    def keys(self) -> KeyRange:
        """The range of encoded keys."""
        return KeyRange(self.start, self.end)
