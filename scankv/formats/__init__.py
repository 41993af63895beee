"""Reads and writes CSV, JSON lines, Parquet and Arrow files as record batches of a table's schema."""
