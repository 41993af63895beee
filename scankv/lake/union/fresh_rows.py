"""What has changed since a published version: the keys that have changed, and the rows that they have now."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from scankv.model.keys.key_codec import KeyCodec
from scankv.model.tables.columns import CHANGE_TYPE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

_BUCKET: Final = "_bucket"
_KEY: Final = "_key"


@dataclass(frozen=True, slots=True)
class ChangedKeys:
    """The keys of a bucket that have changed. Immutable.

    Attributes:
        keys: The encoded keys, in ascending order.
    """

    keys: Sequence[bytes]

    def within(self, first: bytes, last: bytes) -> pa.BinaryArray:
        """Returns the keys from one key to another, both included."""
        return pa.array(self.keys[bisect_left(self.keys, first) : bisect_right(self.keys, last)], pa.binary())


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshRows:
    """The net changes of some buckets. Immutable.

    Attributes:
        rows: The rows that the changed keys have now. Deleted keys have none.
        buckets: The bucket of each of these rows.
        keys: All changed keys, by bucket.
        changed: The key columns of all changed keys, in key order.
        changes: How many changes were read.
    """

    rows: pa.Table
    buckets: pa.ChunkedArray = field(repr=False)
    keys: Mapping[int, ChangedKeys] = field(repr=False)
    changed: pa.Table = field(repr=False)
    changes: int

    @classmethod
    def none(cls, schema: pa.Schema, primary_key: Sequence[str]) -> Self:
        """Returns what is there if nothing has changed."""
        rows = schema.empty_table()
        buckets = pa.chunked_array([], pa.int32())
        return cls(rows=rows, buckets=buckets, keys={}, changed=rows.select(list(primary_key)), changes=0)

    def of_bucket(self, bucket: int) -> pa.Table:
        """Returns the rows of a bucket."""
        return self.rows.filter(pc.equal(self.buckets, bucket))


def key_codec(schema: pa.Schema, primary_key: Sequence[str]) -> KeyCodec:
    """Returns the codec of the keys of rows with some columns."""
    return KeyCodec([schema.field(name).type for name in primary_key], primary_key)


def encode_keys(codec: KeyCodec, rows: pa.RecordBatch) -> pa.BinaryArray:
    """Returns the encoded keys of rows."""
    return codec.encode([rows.column(name) for name in codec.names])


class FreshChanges:
    """Collects changes, of which the last one of each key counts. Memory: all changes that were added.

    Args:
        schema: The columns of the rows.
        primary_key: The key columns, which are among them.

    Attributes:
        changes: How many changes were added.
        bytes: How much memory they take.
    """

    def __init__(self, schema: pa.Schema, primary_key: Sequence[str]) -> None:
        self.changes: int = 0
        self.bytes: int = 0
        # A deleted row may have its key alone.
        self._schema = pa.schema([each.with_nullable(True) for each in schema])
        self._codec = key_codec(schema, primary_key)
        self._added: list[pa.RecordBatch] = []

    def add(self, changes: pa.RecordBatch) -> None:
        """Adds changes with their row kinds. Those of a bucket must come in order."""
        changes = changes.filter(pc.not_equal(changes.column(CHANGE_TYPE), "-U"))
        columns = [changes.column(name) for name in (CHANGE_TYPE, _BUCKET, *self._schema.names)]
        names = [CHANGE_TYPE, _BUCKET, *self._schema.names, _KEY]
        self._added.append(pa.RecordBatch.from_arrays([*columns, encode_keys(self._codec, changes)], names=names))
        self.changes += changes.num_rows
        self.bytes += self._added[-1].nbytes

    def finish(self) -> FreshRows:
        """Returns the net changes."""
        if not self._added:
            return FreshRows.none(self._schema, self._codec.names)
        changes = pa.Table.from_batches(self._added)
        places = pa.array(range(changes.num_rows), pa.int64())
        last = pa.table([changes[_KEY], places], ["key", "place"]).group_by("key").aggregate([("place", "max")])
        net = changes.take(last["place_max"].take(pc.sort_indices(last["key"])))
        here = net.filter(pc.not_equal(net[CHANGE_TYPE], "-D"))
        return FreshRows(
            rows=pa.table([here[name] for name in self._schema.names], schema=self._schema),
            buckets=here[_BUCKET],
            keys={
                bucket: ChangedKeys(net[_KEY].filter(pc.equal(net[_BUCKET], bucket)).to_pylist())
                for bucket in pc.unique(net[_BUCKET]).to_pylist()
            },
            changed=net.select(self._codec.names),
            changes=self.changes,
        )
