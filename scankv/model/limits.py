"""The limits and defaults that server and client share."""

from __future__ import annotations

from typing import Final

MAX_KEY_BYTES: Final = 16 * 1024
"""The largest encoded key in bytes, all columns together."""

MAX_ROW_BYTES: Final = 16 * 1024 * 1024
"""The largest stored row in bytes."""

MAX_REQUEST_BYTES: Final = 32 * 1024 * 1024
"""The most bytes of Arrow data in one write or lookup request, and in the answer to a lookup."""

MAX_REQUEST_ROWS: Final = 1_000_000
"""The most rows of one write request."""

MAX_LOOKUP_KEYS: Final = 100_000
"""The most keys in one lookup."""

MAX_ENCODED_KEYS: Final = 1_000
"""Encoded keys in one lookup of few keys."""

MAX_ENCODED_ROWS: Final = 1_000
"""Encoded rows or keys in one write of few rows."""

DEFAULT_BUCKETS: Final = 4
"""The number of buckets of a table by default."""

MAX_BUCKETS: Final = 1024
"""The most buckets of one table."""

MAX_COLUMNS: Final = 1000
"""The most columns of one table, without nested fields."""

MAX_CHANGELOG_CHANGES: Final = 64
"""How often the option `changelog` of one table can change."""

MAX_INDEXES: Final = 16
"""The most indexes of one table."""

MAX_INDEX_COLUMNS: Final = 8
"""The most columns of one index."""

MAX_PARTITION_COLUMNS: Final = 4
"""The most columns that a table is partitioned by."""

MAX_NAME_LENGTH: Final = 128
"""The most characters of a column name, a database name or a table name."""

MAX_NESTING: Final = 32
"""The most levels of nested lists, structs and maps."""

MAX_TOP_N: Final = 100_000
"""The most rows of a top-N."""

MAX_WAIT_MILLIS: Final = 60_000
"""The longest time, in milliseconds, that a call may wait at the server for a change."""

MAX_LAG_THRESHOLD: Final = 2**48
"""The greatest `lag_threshold` of a stream of net changes, in changes."""

MIN_HEARTBEAT_MILLIS: Final = 100
"""The shortest interval between heartbeats in milliseconds. A scan that asks for a shorter one gets this one."""

MAX_LAST_CHANGES: Final = 100_000
"""The most changes of `StartFrom.last`."""

MIN_CHUNK_ROWS: Final = 1
"""The smallest `chunk_rows` of a scan."""

DEFAULT_CHUNK_ROWS: Final = 8192
"""The most rows of a chunk by default."""

DEFAULT_LOG_CHUNK_ROWS: Final = 16_384
"""The most rows of a chunk of changes by default. It is larger, because changes are produced faster than rows."""

MAX_CHUNK_ROWS: Final = 65_536
"""The greatest `chunk_rows` of a scan."""

MIN_CHUNK_BYTES: Final = 1024
"""The smallest `chunk_bytes` of a scan, in bytes of stored rows."""

DEFAULT_CHUNK_BYTES: Final = 1024 * 1024
"""The most bytes of stored rows in a chunk by default."""

MAX_CHUNK_BYTES: Final = 16 * 1024 * 1024
"""The greatest `chunk_bytes` of a scan, in bytes of stored rows."""

MIN_LEASE_SECONDS: Final = 1.0
"""The shortest time to live of a snapshot's lease, in seconds."""

MAX_LEASE_SECONDS: Final = 7 * 24 * 3600.0
"""The longest time to live of a snapshot's lease, in seconds."""

MAX_SPLITS: Final = 1024
"""The most splits of a scan."""

MAX_RESUME_TOKEN_BYTES: Final = 64 * 1024
"""The most bytes of a resume token."""

MAX_ROWS_POSITION_BYTES: Final = 1024
"""The most bytes of the position of a consumer within rows that its reader takes from elsewhere."""

MIN_CALLS_PER_CONNECTION: Final = 1024
"""The number of concurrent calls that every server accepts from one connection, whatever its configuration."""

WRITER_WINDOW: Final = 16
"""The number of requests of a writer whose answers a bucket keeps, and so the most that may be in flight at once."""

MESSAGE_BYTES: Final = "scankv-message-bytes"
"""The metadata by which a call announces the bytes of its message, or more of them. A call without it claims the memory
of the largest message once its message takes longer than 20 ms to arrive."""

SMALL_MESSAGE_BYTES: Final = 64 * 1024
"""The server receives so many bytes of a call before it reads its message. Clients announce so many for all messages
that are not larger."""

MAX_SIZED_TABLES: Final = 100
"""The most tables whose sizes one call asks for."""

MAX_PINNED_TABLES: Final = 100
"""The most tables of which one call takes snapshots at one instant."""
