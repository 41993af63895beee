"""Files in and out: CSV, JSON lines, Parquet and Arrow, to and from record batches of a table's schema."""
