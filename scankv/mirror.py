"""`scankv.mirror` by a shorter name."""

from aio_client.mirror import *  # noqa: F403
from aio_client.mirror import __all__ as __all__
