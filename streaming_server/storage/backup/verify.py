"""Verifies backups and the archive: every object exists and has the content that the manifests say."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DataLoss, NewerFormat
from streaming_server.storage.backup.archive_segment import read_segment
from streaming_server.storage.backup.backup_manifest import read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from streaming_server.storage.backup.backup_manifest import BackupManifest
    from streaming_server.storage.backup.backup_store import BackupStore

_AT_ONCE: Final = 4


def verify(
    store: BackupStore,
    backup_ids: Iterable[str],
    *,
    quick: bool = False,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> dict[str, list[str]]:
    """Returns what is wrong with each backup, by id. Blocks.

    Args:
        store: The location.
        backup_ids: The backups.
        quick: Compare only the sizes of objects, and read none.
        on_bytes: Called with the bytes of each object after it was read, in any thread.

    Raises:
        BackupFailed: The location cannot be read.
    """
    sizes = store.objects()
    found: dict[str, list[str]] = {}
    needed: dict[str, dict[str, int]] = {}
    for backup_id in backup_ids:
        found[backup_id] = []
        try:
            needed[backup_id] = read_manifest(store, backup_id).objects
        except DataLoss as error:
            found[backup_id].append(error.message)
    problems: dict[str, str] = {}
    for objects in needed.values():
        for name, size in objects.items():
            if name not in sizes:
                problems[name] = f"the object {name} is missing"
            elif sizes[name] != size:
                problems[name] = f"the object {name} has {sizes[name]:,} bytes instead of {size:,}"

    def read(name: str) -> tuple[str, str | None]:
        problem = store.find_damage(name)
        on_bytes(sizes[name])
        return name, problem

    if not quick:
        names = sorted({name for objects in needed.values() for name in objects if name not in problems})
        with ThreadPoolExecutor(_AT_ONCE, "verify") as threads:
            problems |= {name: problem for name, problem in threads.map(read, names) if problem is not None}
    for backup_id, objects in needed.items():
        if damaged := {name: problems[name] for name in sorted(objects) if name in problems}:
            tables = _tables_that_need(damaged, read_manifest(store, backup_id))
            found[backup_id] += [f"{problem}; needed by {tables[name]}" for name, problem in damaged.items()]
    return found


def _tables_that_need(names: Container[str], manifest: BackupManifest) -> dict[str, str]:
    """Returns the names of the tables that need each of some objects, as in `game.scores, game.teams`."""
    tables: dict[str, dict[str, None]] = {}
    for table in manifest.tables:
        for file in table.files:
            if (name := file.pack or file.sha256) in names:
                tables.setdefault(name, {})[table.name] = None
    return {name: ", ".join(needing) for name, needing in tables.items()}


def verify_archive(store: BackupStore, *, quick: bool = False) -> list[str]:
    """Returns what is wrong with the archive: with segments, with their order, and with their data. Blocks.

    Args:
        store: The location.
        quick: Compare only the sizes of data, and read none.

    Raises:
        BackupFailed: The location cannot be read.
    """
    problems: list[str] = []
    sizes, known, backups = store.archived_data(), store.segments(), store.manifests()
    for number, segment_id in enumerate(known):
        try:
            segment = read_segment(store, segment_id)
        except (DataLoss, NewerFormat) as error:
            problems.append(error.message)
            continue
        is_first = not number and (not backups or segment.previous <= backups[0])
        if not is_first and segment.previous != ("" if not number else known[number - 1]):
            problems.append(f"the segment {segment.previous} of the archive is missing")
        for name, size in segment.data.items():
            if name not in sizes:
                problems.append(f"the data {name} of the archive is missing")
            elif sizes[name] < size:  # it may have more, copied before the rest of a log was found to be missing
                problems.append(f"the data {name} of the archive has {sizes[name]:,} bytes instead of {size:,}")
        if quick:
            continue
        for piece in segment.pieces:
            try:
                if sizes.get(piece.data, 0) >= segment.data[piece.data]:
                    store.read_archived(piece.data, piece.offset, piece.size, piece.checksum)
            except DataLoss as error:
                problems.append(error.message)
    return problems
