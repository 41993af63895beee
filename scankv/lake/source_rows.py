"""`SourceRows`: the rows of a table or of files that any program has written, and their state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRows:
    """The rows of a source.

    Attributes:
        reader: The rows, which are read when they are asked for.
        count: Their number. None: it is not known.
        state: Names the source and its state: as long as it is the same, the same rows come in the same order. Empty:
            the order may be another one each time.
    """

    reader: pa.RecordBatchReader
    count: int | None = None
    state: str = ""
