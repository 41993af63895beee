"""Few rows and many rows are merged by different code, which must order rows by age alike."""

from __future__ import annotations

import asyncio
import datetime as dt
from decimal import Decimal
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from aio_client import connect

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.asyncio

_MANY: Final = 300
"""So many rows in a request are merged by column."""

# For each type that can order rows, values in ascending order; null is older than all of them.
VALUES: Final[dict[pa.DataType, list[Any]]] = {
    pa.int8(): [-128, -1, 0, 1, 127],
    pa.int64(): [-(2**63), -256, -1, 0, 1, 255, 256, 2**63 - 1],
    pa.uint64(): [0, 255, 256, 2**63, 2**64 - 1],
    pa.bool_(): [False, True],
    pa.date32(): [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(9999, 12, 31)],
    pa.timestamp("us", "UTC"): [
        dt.datetime(1, 1, 1, tzinfo=dt.UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC),
        dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
        dt.datetime(9999, 12, 31, tzinfo=dt.UTC),
    ],
    pa.decimal128(5, 2): [Decimal(cents).scaleb(-2) for cents in (-99999, -256, -255, -1, 0, 255, 256, 99999)],
    pa.decimal128(38, 0): [Decimal(-(10**38) + 1), Decimal(-256), Decimal(-1), Decimal(255), Decimal(10**38 - 1)],
    pa.string(): ["", "a", "aa", "b", "\ue000", "\U00020bb7"],
}
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "last_row": {"sequence_column": "at"},
    "versioned": {"merge_engine": "versioned", "version_column": "at"},
    "partial_update": {"merge_engine": "partial_update", "sequence_groups": {"at": ["v"]}},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("type_", VALUES, ids=str)
@pytest.mark.represented_by("int8-last_row", "string-partial_update")
async def test_few_rows_and_many_are_ordered_alike(server: ServerProcess, type_: pa.DataType, options: str) -> None:
    schema = pa.schema([("k", pa.int64()), ("at", type_), ("v", pa.int64())])
    pairs = list(product([None, *VALUES[type_]], repeat=2))
    async with connect(server.url) as client:
        name = f"ages.{options}_{list(VALUES).index(type_)}"
        tables = [
            await client.create_table(f"{name}_{path}", schema, primary_key=["k"], **OPTIONS[options])
            for path in ("few", "many")
        ]
        for written in (0, 1):
            rows = [{"k": k, "at": pair[written], "v": written} for k, pair in enumerate(pairs)]
            await asyncio.gather(*(tables[0].upsert([row]) for row in rows))
            filler = [{"k": -1 - n, "at": None, "v": 0} for n in range(_MANY)]
            await tables[1].upsert(pa.Table.from_pylist([*rows, *filler], schema))
        few = await tables[0].scan().ordered().to_pylist()
        many = [row for row in await tables[1].scan().ordered().to_pylist() if row["k"] >= 0]
    assert few == many
