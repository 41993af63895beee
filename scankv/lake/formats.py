"""The open formats by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scankv.lake.location import LakeLocation
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from scankv.lake.lake_table import LakeTable

FORMATS: Final = ("delta",)
KEEP_SECONDS: Final = 7 * 86_400
"""How long the files of earlier versions remain unless the caller says otherwise."""


def open_lake_table(uri: str, format_: str = "delta", keep_seconds: float = KEEP_SECONDS) -> LakeTable:
    """Returns the published table at a location, which may not exist yet. Does not read it.

    Args:
        uri: A directory, or a URI such as `s3://bucket/tables/scores`.
        format_: One of `FORMATS`.
        keep_seconds: How long the files of earlier versions remain.

    Raises:
        UsageError: The format does not exist, or the location cannot be used.
    """
    location = LakeLocation(uri)
    if format_ == "delta":
        from scankv.lake.delta.delta_table import DeltaLakeTable

        return DeltaLakeTable(location, keep_seconds)
    raise UsageError(f"format must be {' or '.join(map(repr, FORMATS))}, not {format_!r}", option="format")
