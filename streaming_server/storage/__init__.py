"""Everything on disk. The only package that uses RocksDB."""
