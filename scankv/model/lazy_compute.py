"""`pyarrow.compute`, imported when the first function of it is used: a quarter of what `import scankv` would take.

from scankv.model import lazy_compute as pc
"""

from typing import Any


def __getattr__(name: str) -> Any:  # noqa: ANN401  # pyarrow has no types
    """Returns the function or class with this name, and caches it as an attribute of this module."""
    import pyarrow.compute

    found = globals()[name] = getattr(pyarrow.compute, name)
    return found
