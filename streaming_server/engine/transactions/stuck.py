"""The errors of committed transactions that are not applied everywhere: why, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scankv.model.errors import DataLoss, DiskFailed, DiskFull, InternalError, ScanKvError, Unavailable
from streaming_server.storage.files.disk_space import details_of_cause

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streaming_server.engine.bucket.live_bucket import LiveBucket
    from streaming_server.storage.transactions.decisions import Decision

RETRY_SECONDS: Final = 5.0
"""The pause between two attempts to apply a stuck transaction."""

_PASSING: Final = (DiskFull, DiskFailed, Unavailable)
"""Failures that may pass although nothing is done about the rows of the transaction."""

OUTCOME_UNKNOWN: Final = "whether the transaction is committed is not known yet"


def _remedy(token: str) -> str:
    """Returns what to do about a transaction that damaged data keeps from being applied."""
    return (
        "restore the damaged data from a copy and restart the server; or drop the table; or give up the lost rows: "
        f"scankv transactions give-up {token}"
    )


def why_blocked(live: LiveBucket, error: Exception, token: str) -> ScanKvError:
    """Returns the error for reads and writes of a bucket that lacks rows of a committed transaction.

    The error is never `DiskFull` or `DiskFailed`, because reads have to wait for the bucket, too. Its detail `cause`
    says so to writes: see `disk_space.refusal_of_write`.
    """
    what = f"{live.location} lacks rows of a committed transaction, and is not served"
    if isinstance(error, DataLoss):
        return DataLoss(
            f"{what}: {error.message}; {_remedy(token)}",
            table=live.table,
            bucket=live.number,
        )
    return retried_error(Unavailable, what, error) if isinstance(error, _PASSING) else _unexpected(what, error, token)


def why_stuck(token: str, failed: Mapping[LiveBucket, Exception], unreadable: Mapping[str, ScanKvError]) -> ScanKvError:
    """Returns the error for a caller of a committed transaction that could not be applied everywhere.

    Args:
        token: The transaction's token.
        failed: The buckets that lack rows of it, and why.
        unreadable: Its tables that cannot be used, and why.
    """
    places = ", ".join(sorted([*(live.location for live in failed), *(f"table {name}" for name in unreadable)]))
    what = f"the transaction is committed, but could not be written to {places}"
    for error in failed.values():
        if isinstance(error, _PASSING):
            return retried_error(retried_kind(error), what, error)
    for error in failed.values():
        if not isinstance(error, DataLoss):
            return _unexpected(what, error, token)
    return DataLoss(f"{what}, because stored data is damaged: {_remedy(token)}")


def _unexpected(what: str, error: BaseException, token: str) -> ScanKvError:
    """Returns the error for a failure that was not expected once the transaction had been checked.

    Clients retry it only if the operating system has failed. Otherwise it most likely needs another version of the
    server, or an operator.
    """
    message = (
        f"{what}: {_cause_of(error)}; the server retries it every {RETRY_SECONDS:g} s, and another version of the "
        f"server may succeed; or give up the rows that cannot be written: scankv transactions give-up {token}"
    )
    return Unavailable(message, retry_after=RETRY_SECONDS) if isinstance(error, OSError) else InternalError(message)


def _cause_of(error: BaseException) -> str:
    return error.message if isinstance(error, ScanKvError) else "see the server's log"


def why_unacknowledged(failures: Mapping[int, ScanKvError]) -> ScanKvError:
    """Returns the error for a caller of a committed transaction that other worker processes have yet to apply.

    Args:
        failures: Why they have not, by worker; not empty.
    """
    workers = ", ".join(map(str, sorted(failures)))
    what = f"the transaction is committed, and has yet to be applied by worker {workers} of the server"
    return retried_error(Unavailable, what, next(iter(failures.values())))


def in_doubt(decision: Decision) -> ScanKvError:
    """Returns the error for a share that was prepared before a restart, until its coordinator answers."""
    return Unavailable(f"worker {decision.coordinator} of the server decides, and has not answered yet")


def why_undecidable(decision: Decision, error: DataLoss) -> DataLoss:
    """Returns the error for a share whose coordinator cannot read its transaction log."""
    return DataLoss(
        f"whether the transaction is committed is not known, because worker {decision.coordinator} of the server "
        f"decides, and has lost that: {error.message}; or give up what the transaction writes here: "
        f"scankv transactions give-up {decision.token}"
    )


def retried_in_the_meantime() -> ScanKvError:
    """Returns the error for the caller of a stuck transaction that another task has applied since."""
    return Unavailable("the transaction could not be applied at once, and is applied now: try again", retry_after=0.1)


def retried_kind(error: BaseException) -> type[DiskFull | DiskFailed | Unavailable]:
    """Returns the error class for a retried failure: `DiskFull` or `DiskFailed` where the disk is the cause."""
    if isinstance(error, DiskFull):
        return DiskFull
    return DiskFailed if isinstance(error, DiskFailed) else Unavailable


def retried_error(kind: type[DiskFull | DiskFailed | Unavailable], what: str, error: BaseException) -> ScanKvError:
    """Returns the error for a failure that the server retries."""
    cause = _cause_of(error)
    return kind(
        f"{what}: {cause}; the server retries it every {RETRY_SECONDS:g} s",
        retry_after=RETRY_SECONDS,
        **(details_of_cause(error) if kind is Unavailable else {}),
    )
