"""The public name of `aio_client.mirror`."""

from aio_client.mirror import *  # noqa: F403
from aio_client.mirror import __all__ as __all__
