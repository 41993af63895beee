"""`IcebergLakeTable`: a published table as an Iceberg table, whose commits pyiceberg makes, each with one snapshot."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Final

from scankv.lake.iceberg.catalogs import catalog_table, table_root, translate_errors
from scankv.lake.iceberg.iceberg_files import iceberg_file
from scankv.lake.iceberg.iceberg_types import iceberg_schema, schema_of, spec_of
from scankv.lake.lake_table import VIEW_TIME, LakeState, LakeTable, LakeVersion
from scankv.lake.location import is_temporary, require_package
from scankv.lake.manifest import LakeManifest, manifest_after
from scankv.lake.writer import DATA_FILE
from scankv.model.errors import LakeConflict, LakeDamaged, LakeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import CreateTableTransaction, Table, Transaction
    from pyiceberg.table.snapshots import Snapshot

    from scankv.lake.lake_table import LakeChange
    from scankv.lake.location import LakeLocation

METADATA: Final = "metadata"
_COMMIT_ID: Final = "scankv.commit_id"
_OF_SNAPSHOT: Final = ("scankv.table", "scankv.log_offsets", "scankv.view_time", "scankv.schema_id", _COMMIT_ID)
"""The properties that the summary of each snapshot has. The table has all of the last commit."""

_LIST: Final = re.compile(rf"{METADATA}/scankv-[0-9a-f-]{{36}}\.json")
_PROPERTIES: Final = {
    # A commit that is repeated after the commit of another publisher would mix the two.
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


class IcebergLakeTable(LakeTable):
    """A published table as an Iceberg table. See `LakeTable`.

    Its data files have the permanent ids of the columns as field ids. What Iceberg does not store about them, such as
    their keys, is in a list of files that each commit writes beside its metadata.
    """

    format: ClassVar[str] = "iceberg"
    has_field_ids: ClassVar[bool] = True

    def __init__(self, location: LakeLocation, keep_seconds: float, catalog: str | None = None) -> None:
        super().__init__(location, keep_seconds)
        require_package("pyiceberg")
        require_package("sqlalchemy")
        self._name = catalog_table(catalog, location)

    def file_schema(self, schema: pa.Schema, primary_key: Sequence[str], partition_by: Sequence[str]) -> pa.Schema:
        """Returns the columns with the types of Iceberg and their field ids."""
        found = iceberg_schema(schema)
        schema_of(found, primary_key, 0)
        return found

    def load(self) -> LakeVersion | None:
        """Reads the table that the catalog names."""
        table = self._load_table()
        if table is None:
            return None
        state = LakeState.of_properties(table.properties, str(self.location))
        snapshot = table.current_snapshot()
        manifest = self._read_list(state.commit_id)
        is_ours = snapshot is not None and _commit_of(snapshot) == state.commit_id
        return LakeVersion(
            version=_version(table),
            state=state,
            files=() if manifest is None else tuple(manifest.files),
            foreign=manifest is None or not is_ours,
            stored=table,
        )

    def versions(self) -> Sequence[int]:
        """Returns the sequence numbers of the snapshots that have not expired."""
        return sorted(self._snapshots())

    def view_time(self, version: int) -> str | None:
        """Returns the instant in the summary of the snapshot."""
        snapshot = self._snapshots().get(version)
        if snapshot is None:
            raise LakeDamaged(f"version {version:,} in {self.location} is missing: choose another one")
        found = snapshot.summary.get(VIEW_TIME) if snapshot.summary else None
        return None if found is None else str(found)

    def load_version(self, version: int) -> LakeVersion:
        """Reads the list of files of a snapshot."""
        snapshot = self._snapshots().get(version)
        manifest = None if snapshot is None else self._read_list(_commit_of(snapshot))
        if manifest is None:
            raise LakeDamaged(
                f"the list of files of version {version:,} in {self.location} is missing or damaged: choose another one"
            )
        state = LakeState.of_properties(manifest.properties, str(self.location))
        return LakeVersion(version=version, state=state, files=tuple(manifest.files))

    def _snapshots(self) -> dict[int, Snapshot]:
        """Returns the snapshots by their sequence numbers."""
        table = self._load_table()
        return {} if table is None else {each.sequence_number or 0: each for each in table.snapshots()}

    def _load_table(self) -> Table | None:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        if not self._name.exists(self.location):
            return None
        with self._name.open(self.location) as catalog:
            try:
                table = catalog.load_table(self._name.identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
        if table.location().rstrip("/") != table_root(self.location):
            raise LakeDamaged(
                f"the catalog has this table in {table.location()}, not in {self.location}: give that location"
            )
        return table

    def commit(self, base: LakeVersion | None, change: LakeChange) -> int:
        """Commits one snapshot, with the schema, the partitions and the properties that belong to it."""
        path = _list_path(change.state.commit_id)
        files = () if base is None else base.files
        with self.location.create(path) as stream:
            stream.write(manifest_after(files, (), change, 0).to_json())
        try:
            with self._name.open(self.location) as catalog:
                return self._commit(catalog, None if base is None else base.stored, change)
        except (LakeConflict, UsageError):
            with suppress(LakeError):  # `expire` deletes it later
                self.location.delete(path)
            raise

    def expire(self, orphan_seconds: float) -> int:
        """Deletes snapshots older than `keep_seconds`, and the files that only they need."""
        if not self._name.exists(self.location) or self.load() is None:
            return 0
        with self._name.open(self.location) as catalog:
            table = catalog.load_table(self._name.identifier)
            outdated = _outdated_snapshots(table, (time.time() - self.keep_seconds) * 1000)
            expired = self._relative(_metadata_of(table, outdated))
            if outdated:
                with suppress(LakeConflict), translate_errors(self.location):  # the next time, then
                    table.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in outdated]).commit()
                table = catalog.load_table(self._name.identifier)
            kept = self._relative(_metadata_of(table, table.snapshots()) | _data_of(table, table.snapshots()))
            kept |= {_list_path(_commit_of(each)) for each in table.snapshots()}
        kept.add(_list_path(table.properties.get(_COMMIT_ID, "")))
        now = time.time()
        deleted = 0
        for stored in (*self.location.list(), *self.location.list(METADATA)):
            is_old = stored.changed_at is not None and now - stored.changed_at.timestamp() >= orphan_seconds
            is_ours = DATA_FILE.fullmatch(stored.path) or _LIST.fullmatch(stored.path) or is_temporary(stored.path)
            if stored.path not in kept and ((is_old and is_ours) or stored.path in expired):
                self.location.delete(stored.path)
                deleted += 1
        return deleted

    def _commit(self, catalog: Catalog, base: Table | None, change: LakeChange) -> int:
        from pyiceberg.table import Table
        from pyiceberg.table.update import (
            AddPartitionSpecUpdate,
            AddSchemaUpdate,
            SetCurrentSchemaUpdate,
            SetDefaultSpecUpdate,
        )

        from scankv.lake.iceberg.snapshots import replace_files

        table = None
        transaction: Transaction
        if base is None:
            transaction = self._create(catalog)
        else:
            table = Table(base.name(), base.metadata, base.metadata_location, base.io, catalog)
            # From here pyiceberg takes how often it repeats a commit, whatever other programs have set.
            table.metadata.properties.update(_PROPERTIES)
            transaction = table.transaction()
        metadata = transaction.table_metadata
        schema = schema_of(change.schema, change.primary_key, max(each.schema_id for each in metadata.schemas) + 1)
        if metadata.schema() != schema:
            transaction._apply((AddSchemaUpdate(schema=schema), SetCurrentSchemaUpdate()))
        spec = spec_of(schema, change.state.partition_by, metadata)
        if spec.spec_id not in metadata.specs():
            transaction._apply((AddPartitionSpecUpdate(spec=spec),))
        transaction._apply((SetDefaultSpecUpdate.model_validate({"spec-id": spec.spec_id}),))
        properties = change.state.to_properties()
        transaction.set_properties({**_PROPERTIES, **properties})
        removed = [] if table is None else self._removed(table, change)
        root = table_root(self.location)
        added = [iceberg_file(file, f"{root}/{file.path}", schema, spec) for file in change.added]
        replace_files(transaction, removed, added, {name: properties[name] for name in _OF_SNAPSHOT})
        return _version(transaction.commit_transaction())

    def _create(self, catalog: Catalog) -> CreateTableTransaction:
        from pyiceberg.schema import Schema

        try:
            catalog.create_namespace_if_not_exists(self._name.identifier[:-1])
            # With an empty schema, because pyiceberg gives the columns of a new table other ids.
            return catalog.create_table_transaction(
                self._name.identifier,
                Schema(),
                table_root(self.location),
                properties={"format-version": "2", **_PROPERTIES},
            )
        except ValueError as error:
            raise UsageError(
                f'the catalog cannot have a table "{".".join(self._name.identifier)}": {error}', option="catalog"
            ) from error

    def _removed(self, table: Table, change: LakeChange) -> list[IcebergFile]:
        """Returns the data files that go, as the manifests have them."""
        root = table_root(self.location)
        gone = {f"{root}/{file.path}" for file in change.removed}
        snapshot = table.current_snapshot()
        files = [] if snapshot is None else _files_of(table, snapshot.manifests(table.io))
        return [file for file in files if change.is_full or file.file_path in gone]

    def _relative(self, paths: Iterable[str]) -> set[str]:
        """Returns paths relative to the location."""
        return {path.removeprefix(f"{table_root(self.location)}/") for path in paths}

    def _read_list(self, commit_id: str) -> LakeManifest | None:
        """Reads the list of files of a commit. None: another program has deleted or damaged it."""
        content = self.location.read(_list_path(commit_id))
        try:
            return None if content is None else LakeManifest.of_json(content)
        except ValueError:
            return None


def _metadata_of(table: Table, snapshots: Sequence[Snapshot]) -> set[str]:
    """Returns the metadata files that snapshots consist of."""
    manifests = {manifest.manifest_path for each in snapshots for manifest in each.manifests(table.io)}
    return manifests | {each.manifest_list for each in snapshots}


def _data_of(table: Table, snapshots: Sequence[Snapshot]) -> set[str]:
    """Returns the data files of snapshots."""
    # Snapshots share most of their manifests.
    manifests = {manifest.manifest_path: manifest for each in snapshots for manifest in each.manifests(table.io)}
    return {file.file_path for file in _files_of(table, manifests.values())}


def _files_of(table: Table, manifests: Iterable[ManifestFile]) -> list[IcebergFile]:
    """Returns the data files that manifests name."""
    from pyiceberg.manifest import DataFileContent

    entries = (entry for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io))
    return [entry.data_file for entry in entries if entry.data_file.content == DataFileContent.DATA]


def _outdated_snapshots(table: Table, since_millis: float) -> list[Snapshot]:
    """Returns the snapshots that were replaced before some time, except those that have a name."""
    snapshots = sorted(table.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    return [
        snapshot
        for snapshot, following in pairwise(snapshots)
        if following.timestamp_ms <= since_millis and snapshot.snapshot_id not in named
    ]


def _version(table: Table) -> int:
    """Returns the sequence number of the latest snapshot, from 1."""
    return max((snapshot.sequence_number or 0 for snapshot in table.snapshots()), default=0)


def _commit_of(snapshot: Snapshot) -> str:
    """Returns the id of the commit that made a snapshot. Empty: another program has made it."""
    found = snapshot.summary.get(_COMMIT_ID) if snapshot.summary else None
    return str(found or "")


def _list_path(commit_id: str) -> str:
    """Returns the file with the list of files of a commit."""
    return f"{METADATA}/scankv-{commit_id}.json"
