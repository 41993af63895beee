"""Finds timestamps in seconds that do not fit milliseconds, for libraries and formats without seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.types as pat

from scankv.model import lazy_compute as pc
from scankv.model.types.nested import scalar_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_SECONDS: Final = (2**63 - 1) // 1000


def check_fits_milliseconds(column: pa.Array | pa.ChunkedArray) -> None:
    """Raises ValueError if a timestamp in seconds, at any depth of a storable column, has no value in milliseconds."""
    if not any(pat.is_timestamp(type_) and type_.unit == "s" for type_ in _parts(column.type)):
        return
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        for scalars in scalar_columns(chunk):
            if pat.is_timestamp(scalars.type) and scalars.type.unit == "s":
                seconds = pc.min_max(scalars.view(pa.int64())).as_py()
                if seconds["max"] is not None and max(seconds["max"], -seconds["min"]) > _MOST_SECONDS:
                    raise ValueError("a timestamp is beyond the range of milliseconds")


def _parts(type_: pa.DataType) -> Iterator[pa.DataType]:
    yield type_
    for index in range(type_.num_fields):
        yield from _parts(type_.field(index).type)
