"""Opening, closing and configuring RocksDB directories."""
