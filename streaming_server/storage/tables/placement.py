"""Which worker process of a server owns which table.

Every worker computes the same answer from the name of a table, so no worker has to ask another one, and no two can
disagree. Every table has exactly one owner.
"""

from __future__ import annotations

from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from scankv.model.names import table_of, tablet_number


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of one worker process among the processes of its server. Immutable and picklable.

    Attributes:
        number: The number of the worker, from 0 on.
        workers: How many workers the server has. 1: the server is one process, and owns all tables.
    """

    number: int = 0
    workers: int = 1

    @property
    def is_alone(self) -> bool:
        """Whether the server is one process."""
        return self.workers == 1

    def owner_of(self, table: str) -> int:
        """Returns the number of the worker that owns a table or a tablet, or would own it if it existed.

        The tablets of a table have one worker after another, beginning with the owner of the table.
        """
        tablet = tablet_number(table) or 0
        return (xxh3_64_intdigest(table_of(table).encode()) + tablet) % self.workers

    def owns(self, table: str) -> bool:
        """Whether this worker owns a table."""
        return self.owner_of(table) == self.number


ALONE = Placement()
"""The place of a server that is one process."""
