"""Work on a row of many columns grows with their number, and not with its square."""

from __future__ import annotations

import sys
import tracemalloc
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from aio_client._input.data import rows_of
from scankv.formats.columns import check_no_others
from scankv.model.types.conform import check_columns
from scankv.model.types.default_values import with_defaults
from streaming_server.storage.rows.row_codec import RowCodec
from tests.support.tables import define

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COLUMNS: Final = 200
NAMES: Final = [f"c{number}" for number in range(COLUMNS)]
SCHEMA: Final = pa.schema([(name, pa.int64()) for name in NAMES])
ROWS: Final = pa.record_batch([pa.array([1])] * COLUMNS, schema=SCHEMA)


class CountedSchema:
    """An Arrow schema that counts how often its list of names is built: each use of `names` builds a new one."""

    def __init__(self) -> None:
        self.listed = 0

    @property
    def names(self) -> list[str]:
        self.listed += 1
        return NAMES

    def field(self, name: str) -> pa.Field:
        return SCHEMA.field(name)

    def __iter__(self) -> Iterator[pa.Field]:
        return iter(SCHEMA)


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(lambda schema: check_columns(SCHEMA, schema), id="rows at the server"),
        pytest.param(lambda schema: check_no_others(NAMES, schema), id="rows of files"),
        pytest.param(lambda schema: rows_of(ROWS).check_names(schema), id="Arrow rows"),
        pytest.param(lambda schema: rows_of([dict.fromkeys(NAMES, 1)]).check_names(schema), id="dicts"),
        pytest.param(lambda schema: rows_of(_pandas()).check_names(schema), id="pandas"),
        pytest.param(lambda schema: rows_of(pl.DataFrame(_pandas())).check_names(schema), id="Polars"),
    ],
)
def test_names_are_listed_a_few_times_however_many_columns_there_are(check: Callable[[pa.Schema], object]) -> None:
    schema = CountedSchema()
    check(cast("pa.Schema", schema))
    assert 1 <= schema.listed <= 5


def _pandas() -> pd.DataFrame:
    return pd.DataFrame(np.ones((1, COLUMNS), np.int64), columns=NAMES)


def test_one_column_of_a_row_is_read_with_as_many_calls_however_many_others_there_are() -> None:
    assert _work_to_read_one_of(800).calls <= 1.5 * _work_to_read_one_of(8).calls


def test_one_column_of_a_row_is_read_with_as_much_memory_however_many_others_there_are() -> None:
    assert _work_to_read_one_of(800).peak_bytes <= 1.5 * _work_to_read_one_of(8).peak_bytes


class DecodingWork(NamedTuple):
    """How many functions were called, and the most memory that Python and NumPy took."""

    calls: int
    peak_bytes: int


def _work_to_read_one_of(columns: int) -> DecodingWork:
    """Returns the work to decode one of so many texts in each of a few hundred rows."""
    names = [f"c{number}" for number in range(columns)]
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), *((name, pa.string()) for name in names)])
    codec, keys = RowCodec(define(schema)), range(300)
    texts = pa.array([str(key) for key in keys])
    stored = codec.encode(pa.record_batch([pa.array(keys), *[texts] * columns], schema=codec.schema))
    decoder, calls = codec.decoder(["c7"]), 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event.endswith("call")

    decoder.decode(stored)  # warms up
    tracemalloc.start()
    sys.setprofile(count)
    try:
        decoded = decoder.decode(stored)
    finally:
        sys.setprofile(None)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert decoded.column(0).equals(texts)
    return DecodingWork(calls, peak_bytes)


def test_defaults_of_absent_columns_follow_the_given_ones() -> None:
    defaults = {"c0": pa.scalar(5), "d": pa.scalar("x"), "e": pa.scalar(2.5)}
    rows = with_defaults(ROWS, defaults)
    assert rows.schema.names == [*NAMES, "d", "e"]
    assert rows.to_pylist() == [dict.fromkeys(NAMES, 1) | {"d": "x", "e": 2.5}]
    assert with_defaults(ROWS, {"c0": pa.scalar(5)}) is ROWS
