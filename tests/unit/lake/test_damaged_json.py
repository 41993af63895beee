"""JSON files of a published table that are nested too deeply for the parser are reported as damaged."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from aio_client import LakeDamaged, LogOffsets, UsageError
from scankv.lake.delta.delta_log import commit_path
from scankv.lake.formats import open_lake_table
from scankv.lake.lake_table import LakeColumn, LakeState
from scankv.lake.location import LakeLocation
from scankv.lake.manifest import LakeManifest
from scankv.lake.parquet.parquet_table import manifest_path

if TYPE_CHECKING:
    from pathlib import Path

DEEP = "[" * 100_000
STATE = LakeState(
    table="t.t",
    content="rows",
    log_offsets=LogOffsets.of({0: 1}, "a"),
    view_time="2026-01-01T00:00:00+00:00",
    schema_id=1,
    expiry="",
    partition_by=(),
    schemas={1: [LakeColumn(1, "k", "int64")]},
    commit_id="c",
)


def write(location: LakeLocation, path: str, content: str) -> None:
    with location.create(path) as file:
        file.write(content.encode())


def commit(properties: dict[str, Any], **add: Any) -> str:
    file = {"path": "a.parquet", "partitionValues": {}, "size": 1, "tags": {}, "stats": "{}", **add}
    actions = [{"protocol": {"minReaderVersion": 1}}, {"metaData": {"configuration": properties}}, {"add": file}]
    return "\n".join(map(json.dumps, actions))


@pytest.mark.parametrize("format_", ["delta", "parquet"])
def test_a_list_of_files_that_is_nested_too_deeply_is_damaged(tmp_path: Path, format_: str) -> None:
    location = LakeLocation(str(tmp_path))
    table = open_lake_table(str(tmp_path), format_)
    write(location, commit_path(0) if format_ == "delta" else manifest_path(0), DEEP)
    with pytest.raises(LakeDamaged, match="json"):
        table.load()
    with pytest.raises(ValueError, match="recursion"):
        LakeManifest.of_json(DEEP.encode())


@pytest.mark.parametrize("name", ["schemas", "partition_by", "log_offsets"])
def test_properties_that_are_nested_too_deeply_are_damaged(tmp_path: Path, name: str) -> None:
    properties = STATE.to_properties() | {f"scankv.{name}": DEEP}
    write(LakeLocation(str(tmp_path)), commit_path(0), commit(properties))
    with pytest.raises(LakeDamaged, match="the properties of the table"):
        open_lake_table(str(tmp_path), "delta").load()


def test_a_file_whose_statistics_are_nested_too_deeply_is_that_of_another_program(tmp_path: Path) -> None:
    write(LakeLocation(str(tmp_path)), commit_path(0), commit(STATE.to_properties(), stats=DEEP))
    version = open_lake_table(str(tmp_path), "delta").load()
    assert version is not None
    assert version.foreign


def test_offsets_that_are_nested_too_deeply_are_refused() -> None:
    with pytest.raises(UsageError, match="is not the JSON form of LogOffsets"):
        LogOffsets.from_json(DEEP)


@pytest.mark.parametrize(
    ("field", "value"), [("path", 7), ("path", None), ("size", "1"), ("tags", []), ("deletionVector", {"offset": "x"})]
)
def test_a_field_of_the_log_with_another_type_is_damaged(tmp_path: Path, field: str, value: Any) -> None:
    write(LakeLocation(str(tmp_path)), commit_path(0), commit(STATE.to_properties(), **{field: value}))
    with pytest.raises(LakeDamaged, match=f"json: .*{field}"):
        open_lake_table(str(tmp_path), "delta").load()


@pytest.mark.parametrize(
    "info", [None, {}, {"size": "big", "path": 7, "tags": [], "partitionValues": {"a": 1}, "deletionVector": "none"}]
)
def test_a_commit_of_another_program_may_say_anything_of_itself(tmp_path: Path, info: Any) -> None:
    text = commit(STATE.to_properties()) + "\n" + json.dumps({"commitInfo": info})
    write(LakeLocation(str(tmp_path)), commit_path(0), text)
    table = open_lake_table(str(tmp_path), "delta")
    assert table.load() is not None
    assert table.view_time(0) is None


@pytest.mark.parametrize("info", [[], "x", {"scankv.view_time": 7}])
def test_what_a_commit_says_of_itself_is_damaged_if_we_cannot_read_it(tmp_path: Path, info: Any) -> None:
    text = commit(STATE.to_properties()) + "\n" + json.dumps({"commitInfo": info})
    write(LakeLocation(str(tmp_path)), commit_path(0), text)
    with pytest.raises(LakeDamaged, match="commitInfo"):
        open_lake_table(str(tmp_path), "delta").load()


@pytest.mark.parametrize(
    ("field", "value"), [("path", 7), ("path", None), ("size", "1"), ("tags", "x"), ("partitionValues", [1])]
)
def test_a_field_of_a_checkpoint_with_another_type_is_damaged(tmp_path: Path, field: str, value: Any) -> None:
    add = {"path": "a.parquet", "partitionValues": [("p", "1")], "size": 1, "tags": [("a", "b")], field: value}
    maps = {name: pa.map_(pa.string(), pa.string()) for name in ("partitionValues", "tags") if name != field}
    type_ = pa.struct([(name, maps.get(name) or pa.scalar(found).type) for name, found in add.items()])
    none = pa.nulls(1, pa.struct([("x", pa.int64())]))
    rows = pa.table({"protocol": none, "metaData": none, "add": pa.array([add], type_), "remove": none})
    (tmp_path / "_delta_log").mkdir()
    pa.parquet.write_table(rows, tmp_path / "_delta_log" / f"{0:020}.checkpoint.parquet")
    with pytest.raises(LakeDamaged, match=r"checkpoint.parquet: "):
        open_lake_table(str(tmp_path), "delta").load()


@pytest.mark.parametrize("features", [[[]], [{}], [7]])
def test_features_of_the_log_that_are_no_texts_are_damaged(tmp_path: Path, features: list[Any]) -> None:
    text = commit(STATE.to_properties()).replace(
        '"minReaderVersion": 1', f'"minReaderVersion": 1, "writerFeatures": {json.dumps(features)}'
    )
    write(LakeLocation(str(tmp_path)), commit_path(0), text)
    with pytest.raises(LakeDamaged, match="writerFeatures"):
        open_lake_table(str(tmp_path), "delta").load()


def test_a_version_in_the_log_that_is_no_number_is_damaged(tmp_path: Path) -> None:
    properties = STATE.to_properties() | {"scankv.version": "x"}
    without_files = commit(properties).rpartition("\n")[0]
    write(LakeLocation(str(tmp_path)), commit_path(0), without_files)
    with pytest.raises(LakeDamaged, match=r"scankv.version"):
        open_lake_table(str(tmp_path), "delta").load()
