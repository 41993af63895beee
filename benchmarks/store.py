"""The store of a run: T4, loaded through the client and compacted, and shared by all readers."""

from __future__ import annotations

import os
import shutil
from functools import cached_property
from typing import TYPE_CHECKING, Final

from aio_client.sync import connect
from benchmarks import t4
from benchmarks.files import open_rocks
from benchmarks.measure import progress
from benchmarks.server import BenchmarkServer
from benchmarks.workers import run_alone

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client.sync import Client

INDEXED_COLUMN: Final = "ts"
"""The indexed column of `Store.indexed`."""

_LOAD_ROWS: Final = 100_000


class Store:
    """A data directory with T4 or the table of a subclass, and copies of it.

    A copy is for a reader that opens the files while a server has locked them.

    Attributes:
        name: The name of the table.
        rows: The number of rows.
        data: The data directory, for a server.
    """

    name: str = t4.TABLE

    def __init__(self, directory: Path, rows: int) -> None:
        """Builds the store in `directory`.

        The client upserts the rows. After the server has stopped, the bucket is flushed and compacted. So nothing runs
        in the background later, and every copy has the same, final files.
        """
        self.rows = rows
        self.data = directory / "data"
        progress(f"loading {rows:,} rows of {self.name} through the client")
        with BenchmarkServer(self.data) as server, connect(server.url) as client:
            self.load(client)
        run_alone(_settle, self.data, self.name)

    def load(self, client: Client) -> None:
        """Creates the table and upserts its rows."""
        table = client.create_table(
            t4.TABLE, t4.SCHEMA, primary_key=t4.PRIMARY_KEY, buckets=t4.BUCKETS, columnar_base="off"
        )
        for batch in t4.batches(self.rows, _LOAD_ROWS):
            table.upsert(batch)

    @cached_property
    def indexed(self) -> Path:
        """A copy of the data directory with an index on `ts`, built on first use."""
        path = self.copy("indexed")
        progress(f"indexing {self.rows:,} rows of T4")
        with BenchmarkServer(path) as server, connect(server.url) as client:
            client.alter_table(t4.TABLE, add_indexes=[INDEXED_COLUMN])
        run_alone(_settle, path, self.name)
        return path

    def copy(self, name: str) -> Path:
        """Copies the data directory: hard links for table files, which never change, and copies of all other files.

        A server may run on the original. Files that the server is still writing are left out.
        """
        path = self.data.with_name(name)
        shutil.copytree(self.data, path, ignore=shutil.ignore_patterns("*.partial"), copy_function=_link_table_files)
        return path


def _settle(data: Path, name: str) -> None:
    store = open_rocks(data, name)
    store.flush()
    for family in (store.rows, store.log, store.index, store.meta):
        family.compact_range(None, None)
    store.close()


def _link_table_files(source: str, target: str) -> None:
    if source.endswith(".sst"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)
