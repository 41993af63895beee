"""How rows, changelog and table definitions lie on disk. The only room that knows RocksDB."""
