"""Leases on pinned views: what a lease is, the checks of its arguments, and how it is described."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scankv.model.errors import InvalidRequest, SnapshotLost
from scankv.model.limits import MAX_LEASE_SECONDS, MIN_LEASE_SECONDS
from scankv.model.names import table_of
from streaming_server.access.owners import owner_check
from streaming_server.engine.snapshots.part_ids import PartId, shown_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from streaming_server.access.owners import OwnerCheck
    from streaming_server.engine.snapshots.pinned_view import PinnedView
    from streaming_server.storage.snapshots.snapshots import ViewManifest

_LEASE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(slots=True, eq=False)
class Lease:
    """A claim on a pinned view: it lasts `ttl` seconds, until `expires` on the monotonic clock.

    A `shared` lease belongs to all callers that know its id: its id is never reused. A `name` is unique among the
    leases of a table. A `pending` lease is the first part of a snapshot whose other parts may not be pinned yet. It
    belongs to `principal`; if that is empty, it has no owner.
    """

    lease_id: str
    view: PinnedView
    ttl: float
    expires: float
    shared: bool = False
    name: str = ""
    pending: bool = False
    principal: str = ""
    ended: bool = False
    _listeners: set[Callable[[], None]] = field(default_factory=set)

    def end(self) -> None:
        """Ends the lease: it was released, it expired, or its table was dropped."""
        self.ended = True
        for listener in list(self._listeners):
            listener()

    @property
    def is_shared(self) -> bool:
        """Whether the lease is shared, or a part of a shared snapshot. Only the first part keeps the id from reuse."""
        part = PartId.parse(self.lease_id)
        return self.shared if part is None else part.shared

    @property
    def renewed_at(self) -> float:
        """When the lease was renewed last, on the monotonic clock."""
        return self.expires - self.ttl

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls the listener when the lease ends. Returns a function that removes the listener."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotInfo:
    """One snapshot, as of now.

    Attributes:
        snapshot_id: The lease.
        view_id: The view that the lease keeps.
        manifest: The manifest of the view.
        ttl: The lease's time to live, in seconds.
        remaining: How long the lease still lasts, in seconds.
        name: The name of the snapshot. Empty: it has none.
        principal: The principal that it belongs to. Empty: it belongs to nobody.
        write_pause_micros: How long writes to the table paused while the view was taken; 0 when the
            view existed already.
    """

    snapshot_id: str
    view_id: str
    manifest: ViewManifest
    ttl: float
    remaining: float
    name: str = ""
    principal: str = ""
    write_pause_micros: int = 0


def snapshot_info(lease: Lease, now: float) -> SnapshotInfo:
    """Describes a lease at an instant of the monotonic clock.

    Raises:
        DataLoss: The manifest of its view cannot be read.
    """
    return SnapshotInfo(
        snapshot_id=lease.lease_id,
        view_id=lease.view.view_id,
        manifest=lease.view.manifest,
        ttl=lease.ttl,
        remaining=max(lease.expires - now, 0.0),
        name=lease.name,
        principal=lease.principal,
    )


def lost_error(snapshot_id: str) -> SnapshotLost:
    """Makes the error for an id that names no lease."""
    shown = shown_id(snapshot_id)[:64]
    return SnapshotLost(
        f"no snapshot {shown!r} exists: it was released, has expired, was dropped with its table, or never existed; "
        "take a new one",
        snapshot=shown,
    )


def check_lease_table(lease: Lease, table: str) -> None:
    """Raises InvalidRequest unless the lease is on a view of this table."""
    if lease.view.table != table:
        of = table_of(lease.view.table)
        raise InvalidRequest(
            f"the snapshot {shown_id(lease.lease_id)} is of table {of}, not of {table_of(table)}", table=of
        )


def check_lease_name(lease: Lease, name: str) -> None:
    """Raises InvalidRequest if a pin that is repeated asks for another name than the lease has. Empty: for any."""
    if name not in ("", lease.name):
        has = f'is named "{lease.name}"' if lease.name else "has no name"
        raise InvalidRequest(f'the snapshot {shown_id(lease.lease_id)} {has}: its name cannot become "{name}"')


def lease_check(lease: Lease) -> OwnerCheck:
    """Returns the check of the owner of a lease."""
    return owner_check(f"the snapshot {shown_id(lease.lease_id)}", [lease.view.table])


def check_lease_owner(lease: Lease) -> None:
    """Raises PermissionDenied if the lease belongs to another principal, and the caller is no admin of its table."""
    lease_check(lease)(lease.principal)


def check_renewal(lease: Lease) -> None:
    """Raises PermissionDenied if the caller may not renew the lease. All readers of a shared one renew it."""
    if not lease.is_shared:
        check_lease_owner(lease)


def check_ttl(ttl: float) -> None:
    """Raises InvalidRequest unless a lease may live for so many seconds."""
    if not MIN_LEASE_SECONDS <= ttl <= MAX_LEASE_SECONDS:
        raise InvalidRequest(
            f"a snapshot's time to live must be between {MIN_LEASE_SECONDS:g} and {MAX_LEASE_SECONDS:,.0f} s, "
            f"not {ttl:g} s"
        )


def check_lease_id(lease_id: str) -> None:
    """Raises InvalidRequest unless the id may name a lease, and so a file."""
    if not _LEASE_ID.fullmatch(lease_id):
        raise InvalidRequest("lease_id must be 1 to 64 characters of A-Z a-z 0-9 _ -")


def check_part_id(lease_id: str) -> None:
    """Raises InvalidRequest unless the id may name a lease on a tablet."""
    if PartId.parse(lease_id) is None:
        raise InvalidRequest("the id of a lease on a tablet must be the id of a part of a snapshot")
