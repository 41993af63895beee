"""What is said of transactions that are committed and not applied everywhere: why, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scankv.model.errors import DataLoss, DiskFull, ScanKvError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streaming_server.engine.bucket.live_bucket import LiveBucket

RETRY_SECONDS: Final = 5.0
"""What is committed and could not be applied is tried again that often."""

UNTOLD: Final = "whether the transaction is committed cannot be told yet"


def _way_out(token: str) -> str:
    """What to do about a transaction for which stored data is damaged."""
    return (
        "restore what is damaged from a copy, and start the server again; or drop the table; or give up what is "
        f"lost: scankv transactions give-up {token}"
    )


def why_blocked(live: LiveBucket, error: Exception, token: str) -> ScanKvError:
    """What all get who read or write a bucket that lacks a committed transaction.

    It is no `DiskFull`: reads, too, have to wait for the bucket.
    """
    what = f"{live.location} lacks what a committed transaction has written, and is not served"
    if isinstance(error, DataLoss):
        return DataLoss(
            f"{what}: {error.message}; {_way_out(token)}",
            table=live.table,
            bucket=live.number,
        )
    return not_yet(Unavailable, what, error)


def why_stuck(token: str, failed: Mapping[LiveBucket, Exception], unreadable: Mapping[str, ScanKvError]) -> ScanKvError:
    """What whoever asks for a committed transaction gets that could not be applied everywhere.

    Args:
        token: The transaction's.
        failed: The buckets that lack it, and why.
        unreadable: Why tables of it cannot be used.
    """
    places = ", ".join(sorted([*(live.location for live in failed), *(f"table {name}" for name in unreadable)]))
    what = f"the transaction is committed, and could not be written to {places}"
    for error in failed.values():
        if not isinstance(error, DataLoss):
            return not_yet(kind_of(error), what, error)
    return DataLoss(f"{what}, because stored data is damaged: {_way_out(token)}")


def kind_of(error: BaseException) -> type[DiskFull | Unavailable]:
    """What whoever commits gets, because of an error: out of space where that is the cause."""
    return DiskFull if isinstance(error, DiskFull) else Unavailable


def not_yet(kind: type[DiskFull | Unavailable], what: str, error: BaseException) -> ScanKvError:
    """The error for something that is tried again."""
    cause = error.message if isinstance(error, ScanKvError) else "see the server's log"
    return kind(f"{what}: {cause}; it is tried again every {RETRY_SECONDS:g} s", retry_after=RETRY_SECONDS)
