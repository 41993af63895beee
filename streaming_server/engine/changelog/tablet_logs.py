"""The changelogs of the tablets of a table, as the consumers of the table need them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scankv.model.changes.log_positions import StartFrom
    from scankv.model.tables.schema import TableDefinition


class TabletLogs(Protocol):
    """The changelogs of the tablets of all tables of a process.

    The owner of a table stores its consumers. Each tablet keeps the changes that the consumers need. At its start, the
    tablet finds them in the files of the consumers. Later, the owner of the table reports them.
    """

    async def find(
        self,
        table: TableDefinition,
        buckets: Sequence[int],
        start: StartFrom,
        *,
        clamp: bool = False,
        consumer_id: str = "",
    ) -> dict[int, int]:
        """Returns the offsets of a start in some buckets of a table.

        Args:
            table: The table.
            buckets: The buckets.
            start: The start.
            clamp: Whether to take the nearest offsets that exist.
            consumer_id: The consumer for which the changes are kept from there on, unless earlier ones already are.

        Raises:
            ScanKvError: As `LogStarts.of`.
            Unavailable: A tablet does not answer.
        """

    async def ends(self, table: TableDefinition, buckets: Sequence[int]) -> dict[int, int]:
        """Returns the next offset of some buckets; skips damaged ones. Raises Unavailable."""

    async def keep(self, table: TableDefinition, consumer_id: str, offsets: Mapping[int, int]) -> None:
        """Has all tablets of a table keep the changes from these offsets on, and no others, for a consumer.

        A tablet that does not answer keeps what it has kept so far.
        """
