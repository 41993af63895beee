"""ScanKV: a live primary-key table that Python scans as Arrow batches.

This module has the names of `aio_client`, the asyncio client. `scankv.sync` has the same names for blocking code. The
client is imported when its first name is used, so `scankv --help` does not wait for it. `__version__` is the version of
the distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aio_client import *  # noqa: F403  # a test compares the names
    from aio_client import __all__ as __all__

    __version__: str


def __getattr__(name: str) -> Any:  # noqa: ANN401  # whatever has that name
    if name == "__version__":
        from importlib.metadata import version

        return version("scankv")
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import aio_client

    if name != "__all__" and name not in aio_client.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(aio_client, name)
    return found


def __dir__() -> list[str]:
    import aio_client

    return sorted({*globals(), *aio_client.__all__, "__version__"})
