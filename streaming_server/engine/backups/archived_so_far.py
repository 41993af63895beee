"""What is archived so far: where the next segment begins, and what it may leave out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from scankv.model.tables.schema import incarnation_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.backup.archive_segment import ArchiveGap, ArchiveSegment, TableChange
    from streaming_server.storage.transactions.decisions import CommittedTransaction

Place: TypeAlias = "tuple[str, int]"
"""A bucket: the incarnation of its table, also if it is in a tablet, and its number."""

_MOST_INCOMPLETE: Final = 1000
"""The most commits that are kept because the archive lacks some of their offsets."""


@dataclass(frozen=True, slots=True)
class ArchivedUpTo:
    """Up to where the write-ahead log of a bucket is archived: the number of a file, and bytes of it."""

    log: int
    end: int


@dataclass(slots=True)
class ArchivedSoFar:
    """What is archived, as far as the process knows that stores segments.

    Attributes:
        previous: The id of the last segment; empty if there is none.
        since_micros: See `ArchiveSegment`.
        gap_micros: See `ArchiveSegment`.
        positions: Up to where each bucket is archived.
        definitions: The definitions of the tables.
        consumers: When the consumers of tables and tablets were changed last.
        commits: The shares of transactions in the last capture, and commits of which it lacks offsets.
        left_out: Why writes to tables are not in the last segment, by incarnation.
        gaps: The writes to tables that the archive will never have, by incarnation.
    """

    previous: str = ""
    since_micros: int = 0
    gap_micros: int = 0
    positions: dict[Place, ArchivedUpTo] = field(default_factory=dict)
    definitions: dict[str, TableDefinition] = field(default_factory=dict)
    consumers: dict[str, int] = field(default_factory=dict)
    commits: list[CommittedTransaction] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    gaps: dict[str, ArchiveGap] = field(default_factory=dict)

    def add_stored(self, segment: ArchiveSegment) -> None:
        """Takes over a segment that an earlier process stored."""
        for incarnation, buckets in segment.buckets.items():
            for number, bucket in buckets.items():
                self.positions[incarnation, number] = ArchivedUpTo(bucket.pieces[-1].log, bucket.pieces[-1].end)
        for change in segment.changes:
            self.definitions.pop(change.incarnation, None)
            if change.definition is not None:
                self.definitions[change.incarnation] = change.definition

    def add_commits(self, found: Iterable[CommittedTransaction], joined: Iterable[CommittedTransaction]) -> None:
        """Takes over what the processes have contributed, and what was archived of it.

        The coordinator of a transaction may contribute its commit before others have applied their shares. Once they
        have, the commit is archived again, with their offsets.
        """
        shares = [each for each in found if each.coordinator is not None]
        commits = {each.token: each for each in (*self.commits, *joined) if each.coordinator is None}
        incomplete = [each for each in commits.values() if each.tables.keys() - each.log_offsets.keys()]
        self.commits = [*incomplete[-_MOST_INCOMPLETE:], *shares]

    def without_known(self, changes: Sequence[TableChange]) -> list[TableChange]:
        """Returns the changes that are not archived.

        A process that was started again repeats all changes that it finds. Changes before the archived definition of a
        table are archived, too.
        """
        known = {number for number, each in enumerate(changes) if self._is_current(each)}
        first = {changes[number].incarnation: number for number in sorted(known)}
        return [each for number, each in enumerate(changes) if number > first.get(each.incarnation, -1)]

    def _is_current(self, change: TableChange) -> bool:
        return change.definition is not None and change.definition == self.definitions.get(change.incarnation)

    def forget(self, incarnation: str) -> None:
        """Forgets a table that was dropped."""
        self.definitions.pop(incarnation, None)
        for each in [each for each in self.consumers if incarnation_of(each) == incarnation]:
            del self.consumers[each]
        for place in [each for each in self.positions if each[0] == incarnation]:
            del self.positions[place]

    def name_of(self, incarnation: str) -> str:
        """Returns the name of a table; its incarnation if the table is unknown."""
        definition = self.definitions.get(incarnation)
        return incarnation if definition is None else definition.name
