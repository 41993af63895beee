"""Opens the files of a table without a server, with the options that the server uses.

No server may use the data directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import t4
from streaming_server.clock import ServerClock
from streaming_server.config import ServerConfig
from streaming_server.storage.bucket.bucket import Bucket
from streaming_server.storage.rocks.store import RocksStore
from streaming_server.storage.rocks.store_options import RocksResources
from streaming_server.storage.tables.catalog import Catalog
from streaming_server.storage.tables.data_directory import DataDirectory

if TYPE_CHECKING:
    from scankv.model.tables.schema import TableDefinition


def definition(data: Path) -> TableDefinition:
    """Returns the definition of T4 in a data directory."""
    return _locate(data)[0]


def open_bucket(data: Path) -> Bucket:
    """Opens the only bucket of T4 in a data directory."""
    table, path = _locate(data)
    return Bucket(path, "T4", compression=table.options.compression, resources=resources(), clock=ServerClock())


def open_rocks(data: Path, name: str = t4.TABLE) -> RocksStore:
    """Opens the RocksDB store of the only bucket of a table in a data directory."""
    table, path = _locate(data, name)
    return RocksStore(path, name, compression=table.options.compression, resources=resources())


def resources() -> RocksResources:
    """Returns the block cache and write buffers of a server with default settings."""
    config = ServerConfig(data=Path("unused"))
    return RocksResources.of_sizes(
        block_cache_bytes=config.block_cache_bytes, write_buffer_bytes=config.write_buffer_bytes
    )


def _locate(data: Path, name: str = t4.TABLE) -> tuple[TableDefinition, Path]:
    """Returns the definition of a table and the RocksDB directory of its only bucket."""
    directory = DataDirectory(data)
    try:
        catalog = Catalog(directory)
        return catalog.get(name), catalog.path(name) / "buckets" / "0000"
    finally:
        directory.close()
