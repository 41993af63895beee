"""The blocking client: `from scankv.sync import connect`."""

from aio_client.sync import *  # noqa: F403  # a test compares the names
from aio_client.sync import __all__ as __all__
