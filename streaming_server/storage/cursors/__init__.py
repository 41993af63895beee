"""Reading key ranges of RocksDB in steps of bounded time, to an end that is proven."""
