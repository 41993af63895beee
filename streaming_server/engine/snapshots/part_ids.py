"""The ids of the parts of a snapshot: a table with tablets is pinned by a lease on a view of each tablet."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, replace
from typing import Final

# No client can give such an id: the ids of clients have no dots.
_PART: Final = re.compile(r"([A-Za-z0-9_-]{1,64})\.([0-9a-f]{32})\.([0-9]{1,5})\.([0-9]{1,5})(s?)")


@dataclass(frozen=True, slots=True)
class PartId:
    """The id of the lease on one tablet. Immutable; `str` gives the id.

    Attributes:
        snapshot_id: The id of the snapshot, as clients know it.
        pin: The pin that has taken the parts. Parts of different pins are of different instants, and never read
            together.
        tablet: The number of the tablet.
        tablets: How many tablets the table has, and so how many parts the snapshot.
        shared: Whether the snapshot is shared, so that its parts may be ended when there are too many leases.
    """

    snapshot_id: str
    pin: str
    tablet: int
    tablets: int
    shared: bool

    def __str__(self) -> str:
        return f"{self.snapshot_id}.{self.pin}.{self.tablet}.{self.tablets}{'s' if self.shared else ''}"

    @property
    def all_parts(self) -> dict[int, PartId]:
        """The ids of all parts of the snapshot, by tablet."""
        return {number: replace(self, tablet=number) for number in range(self.tablets)}

    @classmethod
    def new(cls, snapshot_id: str, tablets: int, *, shared: bool) -> PartId:
        """Returns the id of the first part of a new pin."""
        return cls(snapshot_id, uuid.uuid4().hex, 0, tablets, shared)

    @classmethod
    def parse(cls, lease_id: str) -> PartId | None:
        """Reads the id of a lease. None: the lease is no part."""
        found = _PART.fullmatch(lease_id) if "." in lease_id else None
        return None if found is None else cls(found[1], found[2], int(found[3]), int(found[4]), bool(found[5]))


def shown_id(lease_id: str) -> str:
    """Returns the id by which clients know the snapshot that a lease belongs to."""
    part = PartId.parse(lease_id)
    return lease_id if part is None else part.snapshot_id
