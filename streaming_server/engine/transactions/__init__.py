"""Transactions over many buckets and tables, and undo."""
