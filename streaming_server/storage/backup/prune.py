"""Removes old backups, the objects that no backup needs, and the archive before the oldest backup."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scankv.model.errors import DataLoss
from streaming_server.storage.backup.backup_manifest import read_manifest
from streaming_server.storage.backup.backup_store import segment_of
from streaming_server.storage.backup.claims import Claim

if TYPE_CHECKING:
    from collections.abc import Callable

    from streaming_server.storage.backup.backup_manifest import BackupManifest
    from streaming_server.storage.backup.backup_store import BackupStore


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune has removed.

    Attributes:
        backups: The ids of the backups, the oldest first.
        objects: The number of objects.
        bytes: The bytes of these objects.
    """

    backups: list[str]
    objects: int
    bytes: int


def prune(store: BackupStore, *, keep: int, clock: Callable[[], float] = time.monotonic) -> Pruned:
    """Removes all but the newest backups, and then the objects that no backup needs. Blocks.

    A crash leaves every remaining backup complete; the next prune removes the rest.

    Args:
        store: The location.
        keep: How many backups to keep, at least 1.
        clock: Returns monotonic seconds.

    Raises:
        BackupFailed: A backup is being created there, or the location cannot be read or written.
        DataLoss: The manifest of a backup that is kept cannot be read, so it is unknown what that backup needs.
            Nothing was removed.
    """
    claim = Claim(store, "prune", against="create", clock=clock)
    claim.take()
    try:
        known = store.manifests()
        old, kept = known[:-keep], known[-keep:]
        needed = {name for backup_id in kept for name in _read_kept(store, backup_id).objects}
        for backup_id in old:
            store.remove_manifest(backup_id)
        unneeded = {name: size for name, size in store.objects().items() if name not in needed}
        for name in unneeded:
            claim.renew()
            store.remove_object(name)
        for name in store.partial_objects():
            store.remove_partial(name)
        if kept:
            _prune_archive(store, oldest=kept[0], renew=claim.renew)
        claim.remove_ended()
    finally:
        claim.release()
    return Pruned(old, len(unneeded), sum(unneeded.values()))


def _read_kept(store: BackupStore, backup_id: str) -> BackupManifest:
    try:
        return read_manifest(store, backup_id)
    except DataLoss as error:
        raise DataLoss(
            f"{error.message}: nothing was removed, because it is unknown which files this backup needs; to give the "
            f"backup up, move manifests/{backup_id}.json out of {store.shown}, and prune again"
        ) from error


def _prune_archive(store: BackupStore, *, oldest: str, renew: Callable[[], None]) -> None:
    """Removes the segments that the oldest backup has, and their data. Ids of both ascend with the time."""
    for segment_id in store.segments():
        if segment_id <= oldest:
            renew()
            store.remove_segment(segment_id)
    for name in store.archived_data():
        if segment_of(name) <= oldest:
            renew()
            store.remove_archived(name)
