"""The remembered commits, which answer a repeated commit for as long as a client may repeat it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from streaming_server.storage.transactions.decisions import CommittedTransaction

UNNAMED_SECONDS: Final = 3600.0
"""How long the commit of a transaction without an id is remembered: no client repeats a call for longer."""

_MOST: Final = 100_000


class CommittedTransactions:
    """The remembered commits of a server. Pure.

    Rule: commits expire by service time and are ordered by their numbers. With a clock that can be set, a repeated
    commit could be applied a second time, or the wrong commit could be the last of its family.

    It keeps the commits that have not expired, 100,000 at most, and the last commit of each family while one of its
    tables exists.

    Args:
        seconds: How long a commit with an id is remembered, unless there are too many.
        table_exists: Whether a table of a name and incarnation exists.
    """

    def __init__(self, seconds: float, table_exists: Callable[[str, str], bool]) -> None:
        self._seconds = seconds
        self._table_exists = table_exists
        # The oldest first.
        self._by_token: dict[str, CommittedTransaction] = {}
        self._by_id: dict[str, CommittedTransaction] = {}
        self._last: dict[str, CommittedTransaction] = {}

    def __iter__(self) -> Iterator[CommittedTransaction]:
        """Iterates over the remembered commits, the oldest first."""
        kept = {**{each.token: each for each in self._last.values()}, **self._by_token}
        return iter(sorted(kept.values(), key=lambda each: each.number))

    def add(self, committed: CommittedTransaction) -> None:
        """Remembers the latest commit."""
        self._by_token[committed.token] = committed
        if committed.id:
            self._by_id[committed.id] = committed
        if committed.family:
            self._last[committed.family] = committed

    def find(self, token: str, id_: str) -> CommittedTransaction | None:
        """Returns the remembered commit with a token or an id, or None.

        Rule: an id stands for rows in tables. Once all tables of a commit were dropped, its id can be used again.
        """
        if token in self._by_token:
            return self._by_token[token]
        found = self.with_id(id_)
        return found if found is not None and self._is_in_a_table(found) else None

    def with_id(self, id_: str) -> CommittedTransaction | None:
        """Returns the last remembered commit with an id, whatever has become of its tables, or None."""
        last = self.last_of_family(id_)
        if not id_:
            return None
        return last if last is not None and last.id == id_ else self._by_id.get(id_)

    def last_of_family(self, id_: str) -> CommittedTransaction | None:
        """Returns the last commit whose id is equal up to the last `:`, or None."""
        return self._last.get(id_.rpartition(":")[0])

    def forget(self, now_micros: int) -> None:
        """Forgets the commits that have expired at a service time."""
        for committed in list(self._by_token.values()):
            seconds = self._seconds if committed.id else UNNAMED_SECONDS
            young = committed.served_micros + seconds * 1_000_000 > now_micros
            if young and len(self._by_token) <= _MOST:
                continue
            del self._by_token[committed.token]
            if self._by_id.get(committed.id) is committed:
                del self._by_id[committed.id]
        for family, committed in list(self._last.items()):
            if not self._is_in_a_table(committed):
                del self._last[family]

    def _is_in_a_table(self, committed: CommittedTransaction) -> bool:
        """Whether one of the tables of a commit still exists. A commit without tables has nothing to lose."""
        exists = (self._table_exists(name, incarnation) for name, incarnation in committed.tables.items())
        return not committed.tables or any(exists)
