"""Selects the buckets that a scan reads: by number, by shard, or by a function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scankv.model.errors import UsageError
from scankv.model.keys.buckets import KeyPlaces

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ScannedTable:
    """What a scan knows about its table. Immutable.

    Attributes:
        key_schema: The key columns in key order; none in a table without a primary key.
        buckets: The number of buckets.
        bucket_key: The columns that choose the bucket. Empty: the complete key.
        tablets: Into how many tablets the buckets are divided. 1: into none.
    """

    key_schema: pa.Schema
    buckets: int
    bucket_key: tuple[str, ...] = ()
    tablets: int = 1

    @property
    def places(self) -> KeyPlaces:
        """Finds the buckets of encoded keys."""
        return KeyPlaces(self.key_schema, self.bucket_key or self.key_schema.names, self.buckets)

    def within(self, numbers: Sequence[int], chosen: Sequence[int] | None) -> tuple[int, ...]:
        """Returns the buckets of `numbers` that are also in `chosen`; None stands for all.

        Raises:
            UsageError: The table does not have one of `numbers`.
        """
        for number in numbers:
            if not isinstance(number, int) or not 0 <= number < self.buckets:
                raise UsageError(f"the table has no bucket {number!r}: its buckets are 0 to {self.buckets - 1}")
        return tuple(number for number in numbers if chosen is None or number in chosen)

    def shard(self, index: int, count: int) -> list[int]:
        """Returns the buckets of one of `count` shards: those whose number modulo `count` is `index`.

        Raises:
            UsageError: The shard does not exist.
        """
        are_ints = all(isinstance(number, int) and not isinstance(number, bool) for number in (index, count))
        if not are_ints or not 0 <= index < count:
            raise UsageError(f"a shard must be a number between 0 and count - 1, not {index!r} of {count!r}")
        return list(range(index, self.buckets, count))

    def filter_buckets(self, keeps: Callable[[int], object]) -> list[int]:
        """Returns the buckets for whose number `keeps` is true. Raises UsageError if it is not callable."""
        if not callable(keeps):
            raise UsageError(f"with_bucket_filter must be given a function of a bucket's number, not {keeps!r}")
        return [number for number in range(self.buckets) if keeps(number)]
