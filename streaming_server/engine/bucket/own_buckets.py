"""The buckets of a table that are served under one definition: all of the table, or all of one tablet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.model.errors import InvalidRequest, NotOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.bucket.live_bucket import LiveBucket


class OwnBuckets:
    """The own buckets of a table or a tablet, in the order of their numbers. They never change.

    Args:
        definition: The table, or the tablet.
        make: Creates the bucket of a number.
    """

    def __init__(self, definition: TableDefinition, make: Callable[[int], LiveBucket]) -> None:
        self._name = definition.name
        self._in_table = definition.buckets
        self._buckets = {number: make(number) for number in definition.own_buckets}

    def __getitem__(self, number: int) -> LiveBucket:
        """Returns the bucket of a number.

        Raises:
            InvalidRequest: The table has no such bucket.
            NotOwner: It is in another tablet.
        """
        found = self._buckets.get(number)
        if found is not None:
            return found
        if not 0 <= number < self._in_table:
            raise InvalidRequest(
                f"table {self._name} has no bucket {number}: it has 0 to {self._in_table - 1}", bucket=number
            )
        raise NotOwner(f"bucket {number} is not in {self._name}: ask for it by the name of the table", bucket=number)

    def __iter__(self) -> Iterator[LiveBucket]:
        return iter(self._buckets.values())

    def __len__(self) -> int:
        return len(self._buckets)

    def __contains__(self, live: object) -> bool:
        return live in self._buckets.values()

    @property
    def numbers(self) -> list[int]:
        """The numbers of the buckets, ascending."""
        return list(self._buckets)
