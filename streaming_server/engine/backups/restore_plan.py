"""From which backup each table is restored: all from one, or each as it was at an instant between two backups.

A table is taken back to an instant from the next backup after it, by the changelog that this backup has. So the restore
is exact to the commit, and a transaction is restored in all of its tables or in none. Where the changelog does not
suffice, the table is restored from the last backup before the instant, and the plan says so.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scankv.model.errors import TableNotFound, UsageError, did_you_mean
from streaming_server.engine.backups.rewind import CannotRewind, check_can_rewind
from streaming_server.storage.backup.backup_manifest import BackupManifest, read_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streaming_server.storage.backup.backup_manifest import StoredTable
    from streaming_server.storage.backup.backup_store import BackupStore


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """How one table is restored.

    Attributes:
        table: The table in its backup.
        micros: The instant that the restored table is of, in microseconds since 1970 UTC.
        is_rewound: Whether the table is taken back from the instant of the backup to `micros`.
        otherwise: How it is restored if its changelog does not suffice for that. None: not at all.
        why: Why it is not restored as of the instant that was asked for. Empty: it is.
    """

    table: StoredTable
    micros: int
    is_rewound: bool = False
    otherwise: TableSource | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """How tables are restored.

    Attributes:
        manifest: The backup that has the clock and the commits of transactions.
        micros: The instant, in microseconds since 1970 UTC.
        sources: How each table is restored, by name, ascending.
        left_out: Why tables cannot be restored, by name.
    """

    manifest: BackupManifest
    micros: int
    sources: Mapping[str, TableSource]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def source(self, name: str) -> TableSource:
        """Returns how a table is restored. Raises TableNotFound, which suggests similar names or says why it is not."""
        if name in self.left_out:
            raise TableNotFound(f'the table "{name}" cannot be restored: {self.left_out[name]}', table=name)
        if name not in self.sources:
            similar = did_you_mean(name, self.sources)
            raise TableNotFound(f'the backup {self.manifest.backup_id} has no table "{name}"{similar}', table=name)
        return self.sources[name]


def plan_backup(manifest: BackupManifest) -> RestorePlan:
    """Plans to restore tables as they are in one backup."""
    sources = {table.name: TableSource(table=table, micros=manifest.micros) for table in manifest.tables}
    left_out = {name: f"the backup {manifest.backup_id} lacks it: {why}" for name, why in manifest.left_out.items()}
    return RestorePlan(manifest=manifest, micros=manifest.micros, sources=sources, left_out=left_out)


def plan_instant(store: BackupStore, micros: int) -> RestorePlan:
    """Plans to restore tables as of an instant, in microseconds since 1970 UTC.

    Raises:
        UsageError: No backup is later.
        DataLoss: The manifest of a backup cannot be read.
    """
    before: BackupManifest | None = None
    for backup_id in store.manifests():
        manifest = read_manifest(store, backup_id)
        if manifest.micros > micros:
            return _plan(before, manifest, micros)
        before = manifest
    newest = "no backup exists" if before is None else f"the newest backup is as of {instant_text(before.micros)}"
    raise UsageError(
        f"a restore as of {instant_text(micros)} needs a backup after it, and {newest}: create one now, or restore the "
        "newest backup without an instant"
    )


def _plan(before: BackupManifest | None, after: BackupManifest, micros: int) -> RestorePlan:
    earlier = {} if before is None else {each.name: each for each in before.tables}
    later = {each.name: each for each in after.tables if each.definition.created_millis * 1000 <= micros}
    sources: dict[str, TableSource] = {}
    left_out: dict[str, str] = {}
    for name in sorted({*earlier, *later}):
        fallback = None
        if before is not None and name in earlier:
            fallback = TableSource(table=earlier[name], micros=before.micros, why="the next backup lacks it")
        if name in later:
            try:
                check_can_rewind(later[name].definition)
                sources[name] = TableSource(table=later[name], micros=micros, is_rewound=True, otherwise=fallback)
                continue
            except CannotRewind as error:
                why = error.message
        else:
            why = after.left_out.get(name, "it was dropped before the next backup")
        if fallback is None:
            left_out[name] = f"{why}, and no backup is earlier"
        else:
            sources[name] = TableSource(table=fallback.table, micros=fallback.micros, why=why)
    return RestorePlan(manifest=after, micros=micros, sources=sources, left_out=left_out)


def instant_text(micros: int) -> str:
    """Returns an instant for people."""
    return f"{dt.datetime.fromtimestamp(micros / 1e6, dt.UTC):%Y-%m-%d %H:%M:%S.%f} UTC"
