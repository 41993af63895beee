"""ScanKV: a live primary-key table that Python scans as Arrow batches.

The names here are those of `aio_client`, the asyncio client; `scankv.sync` is the same for code that blocks.
"""

from aio_client import *  # noqa: F403  # a test compares the names
from aio_client import __all__ as __all__
