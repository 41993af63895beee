"""Reads published tables with programs that know nothing of ScanKV."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import polars
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyarrow import parquet
from pyiceberg.catalog.sql import SqlCatalog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyiceberg.table import Table as IcebergTable
    from pyiceberg.table.snapshots import Snapshot

    from aio_client import Table


class LakeReader(ABC):
    """Reads the versions of a published table on a local disk.

    Attributes:
        first_version: The number of the first version.
    """

    first_version: ClassVar[int] = 0

    def __init__(self, uri: str) -> None:
        self.uri = uri

    @abstractmethod
    def versions(self) -> list[int]:
        """Returns the numbers of all versions in ascending order."""

    @abstractmethod
    def read(self, version: int | None = None) -> pa.Table:
        """Returns all rows of a version, by default of the latest."""

    @abstractmethod
    def properties(self, version: int) -> dict[str, str]:
        """Returns what the publisher has stored with a version."""


class DeltaReader(LakeReader):
    """Reads a Delta table."""

    def versions(self) -> list[int]:
        return list(range(DeltaTable(self.uri).version() + 1))

    def read(self, version: int | None = None) -> pa.Table:
        return read_delta(self.uri, version)

    def properties(self, version: int) -> dict[str, str]:
        return DeltaTable(self.uri, version=version).metadata().configuration


class ParquetReader(LakeReader):
    """Reads Parquet files by their manifests."""

    def versions(self) -> list[int]:
        return sorted(int(path.stem) for path in Path(self.uri, "_scankv").glob("*.json"))

    def read(self, version: int | None = None) -> pa.Table:
        names = [column["name"] for column in self.manifest(version)["columns"]]
        tables = []
        for path in self.files(version):
            table = parquet.read_table(path)
            nulls = pa.nulls(len(table))
            columns = [table[name] if name in table.schema.names else nulls for name in names]
            tables.append(pa.table(columns, names))
        empty = pa.table({name: pa.nulls(0) for name in names})
        return pa.concat_tables([empty, *tables], promote_options="permissive")

    def properties(self, version: int) -> dict[str, str]:
        return dict(self.manifest(version)["properties"])

    def files(self, version: int | None = None) -> list[str]:
        """Returns the files of a version."""
        return [f"{self.uri}/{file['path']}" for file in self.manifest(version)["files"]]

    def manifest(self, version: int | None = None) -> dict[str, Any]:
        """Returns the manifest of a version, by default of the latest."""
        number = self.versions()[-1] if version is None else version
        content: dict[str, Any] = json.loads(Path(self.uri, f"_scankv/{number:020}.json").read_bytes())
        return content


class IcebergReader(LakeReader):
    """Reads an Iceberg table with the catalog beside it."""

    first_version = 1

    def versions(self) -> list[int]:
        with self.open() as table:
            return [snapshot.sequence_number or 0 for snapshot in table.snapshots()]

    def read(self, version: int | None = None) -> pa.Table:
        with self.open() as table:
            snapshot = table.current_snapshot() if version is None else self._snapshot(table, version)
            return table.scan(snapshot_id=None if snapshot is None else snapshot.snapshot_id).to_arrow()

    def properties(self, version: int) -> dict[str, str]:
        with self.open() as table:
            summary = self._snapshot(table, version).summary
            return {} if summary is None else dict(summary.additional_properties)

    @contextmanager
    def open(self) -> Iterator[IcebergTable]:
        """Opens the table."""
        with closing(SqlCatalog("scankv", uri=f"sqlite:///{self.uri}/catalog.db")) as catalog:
            yield catalog.load_table("scankv.published")

    @staticmethod
    def _snapshot(table: IcebergTable, version: int) -> Snapshot:
        (snapshot,) = [each for each in table.snapshots() if each.sequence_number == version]
        return snapshot


READERS: dict[str, type[LakeReader]] = {"delta": DeltaReader, "parquet": ParquetReader, "iceberg": IcebergReader}


def reader(format_: str, uri: str) -> LakeReader:
    """Returns a reader of a format."""
    return READERS[format_](uri)


def read_delta(uri: str, version: int | None = None) -> pa.Table:
    """Returns all rows of a version of a Delta table, by default of the latest, as DataFusion reads them."""
    query = QueryBuilder().register("published", DeltaTable(uri, version=version)).execute("SELECT * FROM published")
    return pa.table(query)


def read_with_polars(uri: str) -> pa.Table:
    """Returns all rows of the latest version of a Delta table, as Polars reads them."""
    return polars.scan_delta(uri).collect().to_arrow()


def sorted_rows(rows: pa.Table, key: Sequence[str]) -> list[dict[str, Any]]:
    """Returns rows as dictionaries, in the order of their keys."""
    return sorted(rows.to_pylist(), key=lambda row: tuple(row[name] for name in key))


async def live_rows(table: Table) -> list[dict[str, Any]]:
    """Returns the current rows of a table, in the order of their keys."""
    return sorted_rows(await table.scan().to_arrow(), table.primary_key)
