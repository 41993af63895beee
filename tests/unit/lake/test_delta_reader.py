"""What the reader of Delta tables raises while rows are read, and what is a mistake in a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError

from aio_client import LakeDamaged
from scankv.lake.delta.delta_reader import _batches
from scankv.lake.location import LakeLocation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BATCH = pa.record_batch({"a": [1]})


class PanicException(BaseException):  # the name of pyo3
    """What a panic of Rust is in Python."""


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (Exception("External error"), OSError),
        (DeltaError("no file"), OSError),
        (PanicException("index out of bounds"), LakeDamaged),
        (TypeError("a mistake"), TypeError),
        (MemoryError(), MemoryError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_only_errors_of_the_reader_are_those_of_the_table(
    tmp_path: Path, raised: BaseException, expected: type[BaseException]
) -> None:
    def query() -> Iterator[pa.RecordBatch]:
        yield BATCH
        raise raised

    batches = _batches(query(), LakeLocation(str(tmp_path)))
    assert next(batches) == BATCH
    with pytest.raises(expected) as caught:
        next(batches)
    assert type(caught.value) is expected
