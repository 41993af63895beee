"""Which transactions were committed: what answers a commit that is repeated, for as long as anybody may repeat it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from streaming_server.storage.transactions.decisions import CommittedTransaction

UNNAMED_SECONDS: Final = 3600.0
"""A transaction without an id is remembered for so long: no client repeats a call for longer."""

_MOST: Final = 100_000


class CommittedTransactions:
    """The commits of a server, as far as they are remembered. Pure.

    Rule: they expire by service time and are ordered by their numbers. By a clock that can be set, a commit that is
    repeated would be applied a second time, or the wrong one would be the last of its family.

    Those of the last days, 100,000 at most; and of each family the last one while a table of it is there.

    Args:
        seconds: How long one with an id is remembered at least, unless there are too many.
        is_there: Whether a table of some name and incarnation is there.
    """

    def __init__(self, seconds: float, is_there: Callable[[str, str], bool]) -> None:
        self._seconds = seconds
        self._is_there = is_there
        # The oldest first.
        self._by_token: dict[str, CommittedTransaction] = {}
        self._by_id: dict[str, CommittedTransaction] = {}
        self._last: dict[str, CommittedTransaction] = {}

    def __iter__(self) -> Iterator[CommittedTransaction]:
        """All of them, the oldest first."""
        kept = {**{each.token: each for each in self._last.values()}, **self._by_token}
        return iter(sorted(kept.values(), key=lambda each: each.number))

    def add(self, committed: CommittedTransaction) -> None:
        """Remembers one, the latest."""
        self._by_token[committed.token] = committed
        if committed.id:
            self._by_id[committed.id] = committed
        if committed.family:
            self._last[committed.family] = committed

    def find(self, token: str, id_: str) -> CommittedTransaction | None:
        """The commit of a token, or of an id; None when there is none that is remembered."""
        last = self._last.get(id_.rpartition(":")[0])
        if token in self._by_token:
            return self._by_token[token]
        if not id_:
            return None
        return last if last is not None and last.id == id_ else self._by_id.get(id_)

    def forget(self, now_micros: int) -> None:
        """Lets those go that need not be remembered any more, at some service time."""
        for committed in list(self._by_token.values()):
            seconds = self._seconds if committed.id else UNNAMED_SECONDS
            young = committed.served_micros + seconds * 1_000_000 > now_micros
            if young and len(self._by_token) <= _MOST:
                continue
            del self._by_token[committed.token]
            if self._by_id.get(committed.id) is committed:
                del self._by_id[committed.id]
        for family, committed in list(self._last.items()):
            if not any(self._is_there(name, incarnation) for name, incarnation in committed.tables.items()):
                del self._last[family]
