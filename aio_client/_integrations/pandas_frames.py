"""Converts rows to pandas DataFrames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aio_client._input.optional import import_optional
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_BACKENDS: Final = ("pyarrow", "numpy")


def check_dtype_backend(dtype_backend: object) -> None:
    """Raises UsageError if it is not a backend, or pandas is not installed."""
    if dtype_backend not in _BACKENDS:
        raise UsageError(
            f'dtype_backend must be "pyarrow" or "numpy", not {dtype_backend!r:.80}', option="dtype_backend"
        )
    import_optional("pandas")


def frame_of(rows: pa.Table, dtype_backend: str) -> pd.DataFrame:
    """Converts rows to a DataFrame with the dtypes of a backend: see `Scan.to_pandas`."""
    mapper = import_optional("pandas").ArrowDtype if dtype_backend == "pyarrow" else None
    frame: pd.DataFrame = rows.to_pandas(types_mapper=mapper)
    return frame
