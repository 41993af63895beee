"""Locks on keys, which transactions take on request and hold until they end. Others wait, and deadlocks are found."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from scankv.model.errors import DeadlockDetected, LockTimeout, TooManyLocks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scankv.model.errors import ScanKvError

LockedKey: TypeAlias = tuple[str, bytes]
"""The incarnation of a table, and an encoded key."""


class KeyLocks:
    """Exclusive locks on keys, each held by one transaction. Bound to the event loop.

    A request gets all of its keys at once, or waits and gets none of them. A released key goes to the request that has
    waited for it longest. A request that closes a circle of transactions which wait for each other is refused; the
    others continue to wait.

    Args:
        max_keys: The most keys that are locked at once.
    """

    def __init__(self, max_keys: int) -> None:
        self._max_keys = max_keys
        self._owners: dict[LockedKey, str] = {}
        self._locked: defaultdict[str, set[LockedKey]] = defaultdict(set)
        # By key, the requests that wait for it, in the order in which they came. A request waits for one key at a time.
        self._queues: dict[LockedKey, dict[_LockRequest, None]] = {}
        self._waiting: defaultdict[str, set[_LockRequest]] = defaultdict(set)
        self._closed: ScanKvError | None = None

    async def acquire(self, owner: str, table: str, keys: Iterable[LockedKey], timeout: float) -> None:
        """Locks keys for a transaction. Those that it has locked already stay locked.

        Args:
            owner: The token of the transaction.
            table: The name of the keys' table, for errors.
            keys: The keys.
            timeout: How many seconds to wait for other transactions.

        Raises:
            LockTimeout: Other transactions held some of the keys for all of this time.
            DeadlockDetected: A transaction that holds one of the keys waits for this one.
            TooManyLocks: The limit of locked keys is reached.
            TransactionLost: The transaction has ended in the meantime.
            ServerDraining: The request would have to wait, and the server is being stopped.
        """
        request = _LockRequest(owner, table, [key for key in keys if self._owners.get(key) != owner])
        if len(self._owners) + len(request.keys) > self._max_keys:
            raise TooManyLocks(
                f"transactions have locked {len(self._owners):,} keys, and this request would lock "
                f"{len(request.keys):,} more; the limit is {self._max_keys:,} (max_locked_keys): lock fewer keys, or "
                "commit sooner",
                table=table,
            )
        self._lock_or_wait(request)
        try:
            # Does not cancel the future, which `_pass_on` may be about to set.
            await asyncio.wait([request.granted], timeout=timeout)
        finally:
            self._stop_waiting(request)
        if not request.granted.done():
            raise LockTimeout(
                f"other transactions have held locks on some of the keys of table {table} for {timeout:g} s; the "
                "request was not staged: abort this transaction and try again, or lock fewer keys for a shorter time; "
                "`scankv transactions` shows who waits for whom",
                table=table,
            )
        request.granted.result()

    def release(self, owner: str, error: ScanKvError) -> None:
        """Releases the locks of a transaction that has ended. Its requests that still wait fail with an error."""
        for request in list(self._waiting.get(owner, ())):
            self._stop_waiting(request)
            request.granted.set_exception(error)
        keys = self._locked.pop(owner, set())
        for key in keys:
            del self._owners[key]
        for key in keys:
            self._pass_on(key)

    def close(self, error: ScanKvError) -> None:
        """Ends all waiting, now and in future, with an error. Locks stay until their transactions end."""
        self._closed = error
        for request in [each for waiting in self._waiting.values() for each in waiting]:
            self._stop_waiting(request)
            request.granted.set_exception(copy(error))

    def count(self, owner: str) -> int:
        """Returns how many keys a transaction has locked."""
        return len(self._locked.get(owner, ()))

    def blockers(self, owner: str) -> set[str]:
        """Returns the tokens of the transactions for which a transaction waits now."""
        keys = [request.waits_for for request in self._waiting.get(owner, ()) if request.waits_for is not None]
        # While keys are being passed on, some have no owner.
        return {self._owners[key] for key in keys if key in self._owners}

    def _lock_or_wait(self, request: _LockRequest) -> None:
        """Gives a request its keys, lets it wait for the first one that it cannot have, or refuses it."""
        owner = request.owner
        blocked = next((key for key in request.keys if self._owners.get(key, owner) != owner), None)
        if blocked is None:
            self._owners.update(dict.fromkeys(request.keys, owner))
            if request.keys:
                self._locked[owner].update(request.keys)
            request.granted.set_result(None)
            # Others may wait for these keys without a queue in front of them, if this transaction makes several calls.
            for other in list(self._waiting.get(owner, ())):
                self._refuse_deadlock(other)
            return
        if self._closed is not None:
            request.granted.set_exception(copy(self._closed))
            return
        request.waits_for = blocked
        self._queues.setdefault(blocked, {})[request] = None
        self._waiting[owner].add(request)
        self._refuse_deadlock(request)

    def _pass_on(self, key: LockedKey) -> None:
        while key not in self._owners and key in self._queues:
            request = next(iter(self._queues[key]))
            self._stop_waiting(request)
            self._lock_or_wait(request)

    def _stop_waiting(self, request: _LockRequest) -> None:
        if request.waits_for is None:
            return
        queue = self._queues[request.waits_for]
        del queue[request]
        if not queue:
            del self._queues[request.waits_for]
        waiting = self._waiting[request.owner]
        waiting.remove(request)
        if not waiting:
            del self._waiting[request.owner]
        request.waits_for = None

    def _refuse_deadlock(self, request: _LockRequest) -> None:
        """Refuses a request whose transaction waits for itself, over any number of others."""
        found: set[str] = set()
        to_visit = list(self.blockers(request.owner))
        while to_visit:
            if (owner := to_visit.pop()) not in found:
                found.add(owner)
                to_visit.extend(self.blockers(owner))
        if request.owner in found:
            self._stop_waiting(request)
            request.granted.set_exception(
                DeadlockDetected(
                    f"a transaction that has locked keys of table {request.table} waits for a key of this one, so "
                    "neither could continue; the request was not staged: abort this transaction and try again, and "
                    "lock keys in the same order everywhere",
                    table=request.table,
                )
            )


@dataclass(slots=True, eq=False)
class _LockRequest:
    """A request for keys. `waits_for`: the key for which it waits now, or None if it waits no more."""

    owner: str
    table: str
    keys: list[LockedKey]
    waits_for: LockedKey | None = None
    granted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
