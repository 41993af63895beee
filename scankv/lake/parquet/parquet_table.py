"""`ParquetLakeTable`: a published table as Parquet files, and for each version a manifest that names its files."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, ClassVar, Final

from scankv.lake.lake_table import VIEW_TIME, LakeState, LakeTable, LakeVersion
from scankv.lake.location import is_temporary
from scankv.lake.manifest import LakeManifest, manifest_after
from scankv.lake.parquet.parquet_types import parquet_schema
from scankv.lake.writer import DATA_FILE
from scankv.model.errors import LakeDamaged

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from scankv.lake.lake_table import LakeChange
    from scankv.lake.location import LakeFile
    from scankv.lake.manifest import RemovedFile

DIRECTORY: Final = "_scankv"
"""Where the manifests are, below the location of a table."""

_MANIFEST: Final = re.compile(rf"{DIRECTORY}/(\d{{20}})\.json")


class ParquetLakeTable(LakeTable):
    """A published table as Parquet files. See `LakeTable`.

    A commit is one manifest, which is created only if no file has its name. The manifest with the highest number is the
    current version, so no pointer exists that could be behind it.
    """

    format: ClassVar[str] = "parquet"

    def file_schema(self, schema: pa.Schema, primary_key: Sequence[str], partition_by: Sequence[str]) -> pa.Schema:
        """Returns the columns with the types of Parquet."""
        return parquet_schema(schema)

    def load(self) -> LakeVersion | None:
        """Reads the manifest with the highest number."""
        version = max(self._manifests(), default=None)
        return None if version is None else self.load_version(version)

    def versions(self) -> Sequence[int]:
        """Returns the versions that have manifests."""
        return sorted(self._manifests())

    def view_time(self, version: int) -> str | None:
        """Reads the instant from the manifest."""
        return self._read(version).properties.get(VIEW_TIME)

    def load_version(self, version: int) -> LakeVersion:
        """Reads the manifest of a version.

        Raises:
            LakeDamaged: It is missing or damaged.
            LakeUnavailable: The location does not answer.
        """
        manifest = self._read(version)
        state = LakeState.of_properties(manifest.properties, str(self.location))
        return LakeVersion(version=version, state=state, files=tuple(manifest.files), stored=manifest)

    def commit(self, base: LakeVersion | None, change: LakeChange) -> int:
        """Creates the next manifest, unless it exists."""
        version = 0 if base is None else base.version + 1
        now_millis = int(time.time() * 1000)
        needed = [] if base is None else self._needed(base.stored, now_millis)
        files = () if base is None else base.files
        manifest = manifest_after(files, needed, change, now_millis)
        self.location.create_if_absent(manifest_path(version), manifest.to_json())
        return version

    def expire(self, orphan_seconds: float) -> int:
        """Deletes data files and manifests that no reader of the last `keep_seconds` needs."""
        stored = self._manifests()
        if not stored:
            return 0
        manifest = self._read(max(stored))
        now = time.time()
        kept = {file.path for file in manifest.files}
        kept |= {file.path for file in self._needed(manifest, int(now * 1000))}
        # A publisher that is late must find the manifest that it would overwrite.
        age = max(self.keep_seconds, orphan_seconds)
        outdated = [
            stored[version] for version in stored if version + 1 in stored and _is_old(stored[version + 1], now, age)
        ]
        unused = [
            file
            for file in (*self.location.list(), *self.location.list(DIRECTORY))
            if (DATA_FILE.fullmatch(file.path) or is_temporary(file.path))
            and file.path not in kept
            and _is_old(file, now, orphan_seconds)
        ]
        for file in (*outdated, *unused):
            self.location.delete(file.path)
        return len(outdated) + len(unused)

    def _needed(self, manifest: LakeManifest, now_millis: int) -> list[RemovedFile]:
        since = now_millis - self.keep_seconds * 1000
        return [file for file in manifest.removed if file.removed_at_millis > since]

    def _manifests(self) -> dict[int, LakeFile]:
        """Returns the manifests by their versions."""
        found = {file: _MANIFEST.fullmatch(file.path) for file in self.location.list(DIRECTORY)}
        return {int(match[1]): file for file, match in found.items() if match}

    def _read(self, version: int) -> LakeManifest:
        path = manifest_path(version)
        content = self.location.read(path)
        try:
            if content is None:
                raise ValueError("it is missing")
            return LakeManifest.of_json(content)
        except ValueError as error:
            raise LakeDamaged(
                f"{path} of the table in {self.location} cannot be read ({error}): restore the file, or remove the "
                "table and publish again"
            ) from error


def manifest_path(version: int) -> str:
    """Returns the manifest of a version."""
    return f"{DIRECTORY}/{version:020}.json"


def _is_old(file: LakeFile, now: float, seconds: float) -> bool:
    return file.changed_at is not None and now - file.changed_at.timestamp() >= seconds
