"""Pinned snapshots: taking, leasing, reading and splitting them."""
