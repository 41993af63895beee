"""The partitions of a bucket: a record for each, written in the same WriteBatch as the rows that change it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final, cast

from scankv.model.errors import DataLoss
from scankv.model.keys.key_range import KeyRange
from streaming_server.storage.files.formats import check_format, locate
from streaming_server.storage.rocks.store_options import scan_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from streaming_server.storage.bucket.bucket_change import BucketChange
    from streaming_server.storage.rocks.store import RocksStore
    from streaming_server.storage.rocks.store_batch import StoreBatch

_PREFIX: Final = b"partition/"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord:
    """What a bucket knows about one of its partitions. Immutable.

    Attributes:
        rows: Live rows, exact. None: unknown, because rows were written without reading their predecessors.
        created_micros: The commit time of the first write, or when the partition was created, in microseconds.
        written_micros: The commit time of the last write. 0: nothing was written.
    """

    rows: int | None = 0
    created_micros: int
    written_micros: int = 0

    def to_bytes(self) -> bytes:
        """Returns the stored form."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> PartitionRecord:
        """Reads the result of `to_bytes`. Raises NewerFormat."""
        stored = json.loads(data)
        check_format("the record of a partition", stored.pop("format", _FORMAT), _FORMAT)
        return cls(**stored)

    def after(self, rows_added: int | None, micros: int) -> PartitionRecord:
        """Returns the record after a write that has added so many rows. None: it is unknown how many."""
        rows = None if self.rows is None or rows_added is None else self.rows + rows_added
        return replace(self, rows=rows, written_micros=max(micros, self.written_micros))


class BucketPartitions:
    """The records of the partitions of one open bucket. Read when first needed, then kept in memory.

    Not thread-safe: callers hold the bucket's mutex.

    Args:
        store: The bucket's store.
    """

    def __init__(self, store: RocksStore) -> None:
        self._store = store
        self._records: dict[bytes, PartitionRecord] | None = None

    @property
    def records(self) -> Mapping[bytes, PartitionRecord]:
        """The record of each partition, by its encoded values. Raises DataLoss or NewerFormat."""
        if self._records is None:
            self._records = dict(self._read())
        return self._records

    def within(self, prefix: bytes) -> dict[bytes, PartitionRecord]:
        """Returns the partitions whose encoded values begin with these bytes."""
        return {name: record for name, record in self.records.items() if name.startswith(prefix)}

    def after(self, change: BucketChange, micros: int) -> dict[bytes, PartitionRecord | None]:
        """Returns the records that a change affects, as they are after it. None: the partition is dropped."""
        after: dict[bytes, PartitionRecord | None] = {}
        for keys in change.delete_ranges:
            after |= self._after_deletion(keys, change, micros)
        new = PartitionRecord(created_micros=micros)
        for name, added in change.partitions.items():
            after[name] = (after.get(name) or self.records.get(name, new)).after(added, micros)
        return after

    def _after_deletion(self, keys: KeyRange, change: BucketChange, micros: int) -> dict[bytes, PartitionRecord | None]:
        """Returns the records of the partitions that have keys in a deleted range."""
        touched = {name: KeyRange.under(name) & keys for name in self.records}
        touched = {name: within for name, within in touched.items() if not within.is_empty}
        complete = {name for name, within in touched.items() if within == KeyRange.under(name)}
        if change.last_drop is not None:
            return dict.fromkeys(complete)
        added = change.rows_added if len(touched) == 1 and len(change.delete_ranges) == 1 else None
        return {
            name: replace(self.records[name].after(added, micros), rows=0)
            if name in complete
            else self.records[name].after(added, micros)
            for name in touched
        }

    def remember(self, records: Mapping[bytes, PartitionRecord | None]) -> None:
        """Keeps records as `after` has returned them. Call it after the WriteBatch has succeeded."""
        known = self._records
        if known is None or not records:
            return
        for name, record in records.items():
            if record is None:
                known.pop(name, None)
            else:
                known[name] = record

    def _read(self) -> Iterator[tuple[bytes, PartitionRecord]]:
        options = scan_options(KeyRange.under(_PREFIX).end)
        iterator = None
        try:
            iterator = self._store.meta.iter(options)
            iterator.seek(_PREFIX)
            while iterator.valid():
                key, value = cast("bytes", iterator.key()), cast("bytes", iterator.value())
                yield key[len(_PREFIX) :], PartitionRecord.from_bytes(value)
                iterator.next()
            iterator.status()
        except DataLoss as error:
            raise locate(error, self._store.location) from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataLoss(f"{self._store.location} is damaged: the record of a partition cannot be read") from error
        except Exception as error:
            raise self._store.failure(error) from error
        finally:
            del iterator  # before its options, which it only borrows


def put_partitions(batch: StoreBatch, records: Mapping[bytes, PartitionRecord | None]) -> None:
    """Puts records as `BucketPartitions.after` has returned them, and deletes those of dropped partitions."""
    for name, record in records.items():
        if record is None:
            batch.delete_meta(_PREFIX + name)
        else:
            batch.put_meta(_PREFIX + name, record.to_bytes())
