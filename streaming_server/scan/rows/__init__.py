"""Reading rows from RocksDB: bucket by bucket, in key order, or through an index."""
