"""How large things may be: the limits and defaults that server and client agree on."""

from __future__ import annotations

from typing import Final

MAX_KEY_BYTES: Final = 16 * 1024
"""Bytes of one encoded key, all its columns together."""

MAX_ROW_BYTES: Final = 16 * 1024 * 1024
"""Bytes of one stored row."""

MAX_REQUEST_BYTES: Final = 32 * 1024 * 1024
"""Bytes of the Arrow data in one write or lookup, and of one lookup's answer."""

MAX_REQUEST_ROWS: Final = 1_000_000
"""Rows of one write request."""

MAX_LOOKUP_KEYS: Final = 100_000
"""Keys in one lookup."""

DEFAULT_BUCKETS: Final = 4
"""Buckets of a table that does not say how many."""

MAX_BUCKETS: Final = 1024
"""Buckets of one table."""

MAX_COLUMNS: Final = 1000
"""Columns of one table, nested fields not counted."""

MAX_INDEXES: Final = 16
"""Indexes of one table."""

MAX_INDEX_COLUMNS: Final = 8
"""Columns of one index."""

MAX_NAME_LENGTH: Final = 128
"""Characters of a column name, a database name or a table name."""

MAX_NESTING: Final = 32
"""Levels of list, struct and map inside one another."""

MAX_TOP_N: Final = 100_000
"""Rows that the first rows by a column may be asked for."""

MAX_WAIT_MILLIS: Final = 60_000
"""Milliseconds that a call may ask to wait at the server until what it asks about has changed."""

MAX_LAG_THRESHOLD: Final = 2**48
"""The greatest lag threshold for net changes that a stream may ask for, in changes."""

MIN_HEARTBEAT_MILLIS: Final = 100
"""Milliseconds between heartbeats: the least that a scan gets, whatever it asks for."""

MAX_LAST_CHANGES: Final = 100_000
"""Changes that a stream may be asked to start before the end with."""

MIN_CHUNK_ROWS: Final = 1
"""Rows: the least that a scan may ask for as the bound of a chunk."""

DEFAULT_CHUNK_ROWS: Final = 8192
"""Rows of a chunk when the scan does not say."""

DEFAULT_LOG_CHUNK_ROWS: Final = 16_384
"""The same of a stream of changes, which are made faster than rows are read."""

MAX_CHUNK_ROWS: Final = 65_536
"""Rows: the most that a scan may ask for as the bound of a chunk."""

MIN_CHUNK_BYTES: Final = 1024
"""Bytes of stored rows: the least that a scan may ask for as the bound of a chunk."""

DEFAULT_CHUNK_BYTES: Final = 1024 * 1024
"""Bytes of stored rows in a chunk when the scan does not say."""

MAX_CHUNK_BYTES: Final = 16 * 1024 * 1024
"""Bytes of stored rows: the most that a scan may ask for as the bound of a chunk."""

MIN_LEASE_SECONDS: Final = 1.0
"""Seconds: the shortest time to live of a snapshot's lease."""

MAX_LEASE_SECONDS: Final = 7 * 24 * 3600.0
"""Seconds: the longest time to live of a snapshot's lease."""

MAX_SPLITS: Final = 1024
"""Key ranges that a snapshot may be cut into."""

MAX_RESUME_TOKEN_BYTES: Final = 64 * 1024
"""Bytes of a resume token."""

MIN_CALLS_PER_CONNECTION: Final = 1024
"""Calls that every server takes from one connection at once, whatever its configuration."""

WRITER_WINDOW: Final = 16
"""Requests of one writer whose answers a bucket keeps, and so the most that may be under way at once."""
