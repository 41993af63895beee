"""What every open format of a published table does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import LakeConflict, LogOffsets
from scankv.lake.formats import FORMATS, open_lake_table
from scankv.lake.lake_table import FIELD_ID, LakeChange, LakeColumn, LakeState
from scankv.lake.writer import LakeWriter
from scankv.model.keys.key_codec import KeyCodec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scankv.lake.lake_table import DataFile, LakeTable, LakeVersion

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={FIELD_ID: "1"}),
        pa.field("value", pa.int64(), metadata={FIELD_ID: "2"}),
    ]
)
COLUMNS = (LakeColumn(1, "id", "int64"), LakeColumn(2, "value", "int64"))
CODEC = KeyCodec([pa.int64()])


@pytest.fixture(params=FORMATS)
def format_(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "published")


@pytest.fixture
def lake(uri: str, format_: str) -> LakeTable:
    return open_lake_table(uri, format_)


def state(offset: int) -> LakeState:
    return LakeState(
        table="test.t",
        content="rows",
        log_offsets=LogOffsets.of({0: offset, 1: offset + 1}, "incarnation"),
        view_time="2026-11-26T06:00:00+00:00",
        schema_id=1,
        expiry="",
        partition_by=(),
        schemas={1: COLUMNS},
        commit_id=f"00000000-0000-0000-0000-{offset:012}",
    )


def write_files(lake: LakeTable, *ranges: range) -> list[DataFile]:
    """Writes a data file for each range of ids."""
    writer = LakeWriter(
        lake.location,
        lake.file_schema(SCHEMA, ["id"], []),
        schema_id=1,
        partition_by=[],
        primary_key=["id"],
        key_at=lambda rows, index: CODEC.encode([rows.column("id").slice(index, 1)])[0].as_py(),
    )
    for ids in ranges:
        columns = {"id": list(ids), "value": [None] * len(ids)}
        writer.write(ids.start % 2, pa.RecordBatch.from_pydict(columns, SCHEMA))
        writer.end_range()
    return writer.files


def change(
    lake: LakeTable,
    offset: int,
    added: Sequence[DataFile],
    removed: Sequence[DataFile] = (),
    is_full: bool = False,
) -> LakeChange:
    return LakeChange(
        state=state(offset),
        schema=lake.file_schema(SCHEMA, ["id"], []),
        primary_key=["id"],
        removed=removed,
        added=added,
        is_full=is_full,
    )


def loaded(lake: LakeTable) -> LakeVersion:
    version = lake.load()
    assert version is not None
    return version


def by_path(files: Sequence[DataFile]) -> list[DataFile]:
    return sorted(files, key=lambda file: file.path)


def test_nothing_is_published_at_first(lake: LakeTable) -> None:
    assert lake.load() is None


def test_a_version_is_loaded_as_it_was_committed(lake: LakeTable, uri: str, format_: str) -> None:
    files = write_files(lake, range(10), range(11, 15))
    number = lake.commit(None, change(lake, 5, files, is_full=True))
    found = loaded(open_lake_table(uri, format_))
    assert (found.version, found.state, found.foreign) == (number, state(5), False)
    assert found.state.log_offsets.table_incarnation == "incarnation"
    assert by_path(found.files) == by_path(files)


def test_files_are_removed_and_added_in_one_step(lake: LakeTable) -> None:
    first = write_files(lake, range(10), range(11, 15))
    lake.commit(None, change(lake, 5, first, is_full=True))
    base = loaded(lake)
    gone = [file for file in base.files if file.path == first[0].path]
    added = write_files(lake, range(8))
    assert lake.commit(base, change(lake, 6, added, gone)) > base.version
    assert by_path(loaded(lake).files) == by_path([first[1], *added])


def test_a_full_version_replaces_all_files(lake: LakeTable) -> None:
    lake.commit(None, change(lake, 5, write_files(lake, range(10)), is_full=True))
    base = loaded(lake)
    added = write_files(lake, range(3))
    lake.commit(base, change(lake, 6, added, base.files, is_full=True))
    assert loaded(lake).files == tuple(added)
    base = loaded(lake)
    lake.commit(base, change(lake, 7, [], base.files, is_full=True))
    assert loaded(lake).files == ()


def test_a_commit_after_an_earlier_version_is_refused(lake: LakeTable, uri: str, format_: str) -> None:
    other = open_lake_table(uri, format_)
    lake.commit(None, change(lake, 5, write_files(lake, range(10)), is_full=True))
    with pytest.raises(LakeConflict):
        other.commit(None, change(other, 6, write_files(other, range(3)), is_full=True))
    base = loaded(other)
    added = write_files(lake, range(21, 25))
    lake.commit(loaded(lake), change(lake, 7, added))
    with pytest.raises(LakeConflict):
        other.commit(base, change(other, 8, write_files(other, range(31, 35))))
    found = loaded(other)
    assert found.state == state(7)
    assert len(found.files) == 2


def test_a_version_without_changed_files_is_committed(lake: LakeTable) -> None:
    files = write_files(lake, range(10))
    lake.commit(None, change(lake, 5, files, is_full=True))
    lake.commit(loaded(lake), change(lake, 6, []))
    assert loaded(lake).state == state(6)
    assert loaded(lake).files == tuple(files)


def test_old_files_remain_for_a_while(lake: LakeTable, uri: str, format_: str) -> None:
    first = write_files(lake, range(10))
    lake.commit(None, change(lake, 5, first, is_full=True))
    base = loaded(lake)
    second = write_files(lake, range(3))
    lake.commit(base, change(lake, 6, second, base.files))
    (orphan,) = write_files(lake, range(1))
    kept = open_lake_table(uri, format_, keep_seconds=3600)
    assert kept.expire(orphan_seconds=3600) == 0
    kept.expire(orphan_seconds=0)
    assert {file.path: exists(kept, file) for file in (first[0], second[0], orphan)} == {
        first[0].path: True,
        second[0].path: True,
        orphan.path: False,
    }
    open_lake_table(uri, format_, keep_seconds=0).expire(orphan_seconds=0)
    assert [exists(kept, file) for file in (first[0], second[0])] == [False, True]
    assert loaded(kept).files == tuple(second)


def exists(lake: LakeTable, file: DataFile) -> bool:
    return lake.location.read(file.path) is not None
