"""The server: tables in RocksDB, written and scanned over gRPC."""
