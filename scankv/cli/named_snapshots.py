"""Finds the snapshot that a user means: by its id, or by its name as TABLE@NAME."""

from aio_client import sync
from scankv.model.errors import SnapshotLost


def find_snapshot(given: str, snapshots: list[sync.Snapshot]) -> sync.Snapshot:
    """Returns the snapshot of an id, or of a name in the form TABLE@NAME. Raises SnapshotLost if it does not exist."""
    table, at, name = given.rpartition("@")
    for snapshot in snapshots:
        if (snapshot.table, snapshot.name) == (table, name) if at else snapshot.id == given:
            return snapshot
    what = f"of {table} has the name {name}" if at else f"has the id {given}"
    raise SnapshotLost(f"no snapshot {what}; it was released or has expired; see: scankv snapshots list")


def snapshot_id(client: sync.Client, given: str) -> str:
    """Returns the id of a snapshot that was given by its id or as TABLE@NAME. Raises SnapshotLost for such a name."""
    return find_snapshot(given, client.snapshots()).id if "@" in given else given
