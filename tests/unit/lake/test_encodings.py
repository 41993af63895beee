"""Integer keys of data files are stored as differences, which all readers know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import polars
import pyarrow as pa
import pytest
from pyarrow import parquet

from scankv.lake.location import LakeLocation
from scankv.lake.writer import LakeWriter

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 10_000
SCHEMA = pa.schema(
    [
        pa.field("at.first", pa.int64(), nullable=False),
        pa.field("small", pa.int8(), nullable=False),
        ("team", pa.string()),
        ("nested", pa.list_(pa.struct([("value", pa.int64())]))),
    ]
)


def rows() -> pa.RecordBatch:
    ids = [number * number - 2**40 for number in range(COUNT)]
    small = [number % 256 - 128 for number in range(COUNT)]
    nested = [[{"value": number}] if number % 3 else None for number in range(COUNT)]
    return pa.RecordBatch.from_pydict(
        dict(zip(SCHEMA.names, [ids, small, ["a", "b"] * (COUNT // 2), nested], strict=True)), SCHEMA
    )


@pytest.mark.represented_by("['at.first']", "['team', 'small', 'at.first']")
@pytest.mark.parametrize("key", [[], ["team"], ["at.first"], ["team", "small", "at.first"]], ids=str)
def test_integer_keys_are_stored_as_differences_and_read_by_others(tmp_path: Path, key: list[str]) -> None:
    writer = LakeWriter(
        LakeLocation(str(tmp_path)),
        SCHEMA,
        schema_id=1,
        partition_by=[],
        primary_key=key,
        key_at=lambda batch, row: str(row).encode(),
    )
    writer.write(0, rows())
    writer.end_range()
    path = tmp_path / writer.files[0].path
    group = parquet.read_metadata(path).row_group(0)
    columns = {group.column(number).path_in_schema: group.column(number) for number in range(group.num_columns)}
    assert len(columns) == 4
    for name, column in columns.items():
        is_difference = name in key and name != "team"
        assert ("DELTA_BINARY_PACKED" in column.encodings) == is_difference
        assert column.has_dictionary_page != is_difference
    expected = rows().to_pylist()
    assert parquet.read_table(path).to_pylist() == expected
    assert polars.read_parquet(path).to_dicts() == expected
    assert duckdb.read_parquet(str(path)).to_arrow_table().to_pylist() == expected
