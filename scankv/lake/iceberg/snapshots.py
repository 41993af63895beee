"""One commit of an Iceberg table: a snapshot that adds and removes data files at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyiceberg.manifest import ManifestContent
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Transaction

_MOST_MANIFESTS: Final = 20
_MANIFEST_BYTES: Final = 8 << 20


def replace_files(
    transaction: Transaction, removed: Iterable[DataFile], added: Iterable[DataFile], properties: Mapping[str, str]
) -> None:
    """Adds one snapshot to a transaction. Readers see either all of its changes or none.

    `Table.overwrite` of pyiceberg would make two, the first of which lacks rows.

    Args:
        transaction: The transaction.
        removed: Data files of the current snapshot that do not belong to the table any more.
        added: New data files.
        properties: What the summary of the snapshot has.
    """
    snapshot = _ReplaceFiles(
        operation=Operation.OVERWRITE,
        transaction=transaction,
        io=transaction._table.io,
        snapshot_properties=dict(properties),
    )
    for file in removed:
        snapshot.delete_data_file(file)
    for file in added:
        snapshot.append_data_file(file)
    snapshot.commit()


class _ReplaceFiles(_OverwriteFiles):
    """An overwrite that joins manifests. Otherwise each commit would add one, which every reader reads."""

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        live = [
            manifest
            for manifest in manifests
            if manifest.added_snapshot_id == self.snapshot_id
            or manifest.content != ManifestContent.DATA
            or manifest.has_added_files()
            or manifest.has_existing_files()
        ]
        data = [manifest for manifest in live if manifest.content == ManifestContent.DATA]
        others = [manifest for manifest in live if manifest.content != ManifestContent.DATA]
        manager: Any = _ManifestMergeManager(
            target_size_bytes=_MANIFEST_BYTES,
            min_count_to_merge=2,
            merge_enabled=len(data) > _MOST_MANIFESTS,
            snapshot_producer=self,
        )
        return [*manager.merge_manifests(data), *others]
