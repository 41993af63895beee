"""Columnar bases: rows written in batches of any size are read back exactly from the mapped file."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import DataLoss
from streaming_server.storage.columnar import base_writer
from streaming_server.storage.columnar.base_writer import BaseWriter
from streaming_server.storage.columnar.columnar_base import ColumnarBase, newest_base, remove_bases
from streaming_server.storage.rows.key_encoder import KeyEncoder
from tests.support.examples import examples
from tests.support.tables import define, exact_rows, exact_values
from tests.unit.model.strategies import order_of
from tests.unit.storage.strategies import batches, definitions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scankv.model.tables.schema import TableDefinition

NUMBERS = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("text", pa.string())])

(NAN,) = order_of(pa.array([float("nan")]))


def numbered(definition: TableDefinition, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.BinaryArray]:
    """Returns the rows with ascending numbers as their first column, the key; and their encoded keys."""
    key = pa.array(np.arange(rows.num_rows), definition.schema.arrow.field(0).type)
    rows = pa.RecordBatch.from_arrays([key, *rows.columns[1:]], schema=definition.schema.arrow)
    return rows, KeyEncoder(definition).encode(rows)[0]


def texts(values: Sequence[str | None]) -> tuple[TableDefinition, pa.RecordBatch, pa.BinaryArray]:
    definition = define(NUMBERS)
    rows = pa.RecordBatch.from_arrays([pa.nulls(len(values), pa.int64()), pa.array(values, pa.string())], ["k", "text"])
    return definition, *numbered(definition, rows)


def written(
    directory: Path, definition: TableDefinition, rows: pa.RecordBatch, keys: pa.BinaryArray, *cuts: int, **options: Any
) -> ColumnarBase:
    """Writes a base of these rows in parts, from cut to cut."""
    writer = BaseWriter(directory, definition, 3, now_micros=time.time_ns() // 1000, **options)
    borders = [0, *sorted(min(cut, rows.num_rows) for cut in cuts), rows.num_rows]
    for start, end in pairwise(borders):
        writer.write(rows.slice(start, end - start), keys.slice(start, end - start))
    return ColumnarBase.open(writer.finish(7), "bucket 3")


@contextmanager
def batches_of(rows: int, size: int = 2 << 20) -> Iterator[None]:
    """Makes bases with smaller batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base_writer, "BATCH_ROWS", rows)
        patch.setattr(base_writer, "BATCH_BYTES", size)
        yield


def all_of(base: ColumnarBase) -> list[tuple[Any, ...]]:
    return [row for number in range(len(base)) for row in exact_rows(base.batch(number))]


def counts(base: ColumnarBase) -> list[int]:
    return [base.rows_in(number) for number in range(len(base))]


@given(st.data())
@examples(12)
def test_every_storable_type_comes_back_to_the_bit_whatever_the_batches_on_the_way_in(data: st.DataObject) -> None:
    definition = data.draw(definitions())
    rows, keys = numbered(definition, data.draw(batches(definition.schema.arrow, max_rows=12)))
    cuts = data.draw(st.lists(st.integers(0, 12), max_size=4))
    with (
        tempfile.TemporaryDirectory() as path,
        batches_of(data.draw(st.integers(1, 8)), data.draw(st.integers(1, 600))),
    ):
        base = written(Path(path), definition, rows, keys, *cuts)
        assert all_of(base) == exact_rows(rows)
        assert [key for number in range(len(base)) for key in base.keys(number).to_pylist()] == keys.to_pylist()
        check_batches(base)
        check_file(Path(path) / base.info.name / "rows.arrow", base)


def check_batches(base: ColumnarBase) -> None:
    """Checks what the base reports about its batches."""
    assert base.info.rows == sum(counts(base))
    for number in range(len(base)):
        batch, keys, message = base.batch(number), base.keys(number), base.message(number)
        batch.validate(full=True)
        assert 1 <= batch.num_rows == len(keys) == base.rows_in(number) <= base_writer.BATCH_ROWS
        assert (base.first_keys[number], base.last_keys[number]) == (keys[0].as_py(), keys[-1].as_py())
        assert message == batch.serialize()
        assert exact_rows(pa.ipc.read_record_batch(message, base.schema)) == exact_rows(batch)
        for field in base.schema:
            check_zone(base, number, field)


def check_zone(base: ColumnarBase, number: int, field: pa.Field) -> None:
    """Checks that the zone matches the values."""
    zone, values = base.zone(number, field.name), base.batch(number).column(field.name)
    if pa.types.is_nested(field.type):
        assert zone is None
        return
    assert zone is not None
    ordered = order_of(values.drop_null())
    bounded = [value for value in ordered if value != NAN] if pa.types.is_floating(field.type) else ordered
    assert (zone.nulls, zone.has_nan) == (values.null_count, len(bounded) < len(ordered))
    if not bounded:
        assert zone.least is zone.greatest is None
        return
    bounds = pa.array([zone.least, zone.greatest], field.type)
    assert order_of(bounds) == [min(bounded), max(bounded)]


def check_file(path: Path, base: ColumnarBase) -> None:
    """Checks that any program that reads Arrow reads the same rows."""
    with pa.ipc.open_file(path) as file:
        assert file.schema.equals(base.schema)
        assert file.num_record_batches == len(base)
        for number in range(len(base)):
            assert exact_rows(file.get_batch(number)) == exact_rows(base.batch(number))


def test_small_batches_are_merged_and_large_ones_cut_by_rows(tmp_path: Path) -> None:
    definition, rows, keys = texts(["x"] * 25)
    with batches_of(10):
        assert counts(written(tmp_path, definition, rows, keys)) == [10, 10, 5]
        assert counts(written(tmp_path, definition, rows, keys, *range(1, 25))) == [10, 10, 5]
        assert counts(written(tmp_path, definition, rows, keys, 9, 10, 12)) == [10, 10, 5]


def test_batches_are_cut_by_bytes_and_a_row_that_is_longer_is_a_batch_of_its_own(tmp_path: Path) -> None:
    short, long = "s" * 100, "l" * 5000
    definition, rows, keys = texts([short, short, long, short, long, long, *[short] * 12])
    with batches_of(1000, 1200):
        whole = written(tmp_path, definition, rows, keys)
        assert counts(whole) == [2, 1, 1, 1, 1, 10, 2]
        assert counts(written(tmp_path, definition, rows, keys, *range(1, 18))) == counts(whole)
    assert all_of(whole) == exact_rows(rows)


def test_small_slices_do_not_keep_the_large_batches_that_they_are_of(tmp_path: Path) -> None:
    definition = define(NUMBERS)
    writer = BaseWriter(tmp_path, definition, 0, now_micros=time.time_ns() // 1000)
    encoder = KeyEncoder(definition)
    before, most = pa.total_allocated_bytes(), 0
    for number in range(100):
        large = pa.RecordBatch.from_arrays([pa.array([number]), pa.array(["x"])], schema=definition.schema.arrow)
        large = pa.concat_batches([large, pa.RecordBatch.from_pydict({"k": [0], "text": ["y" * 2**20]}, large.schema)])
        writer.write(large.slice(0, 1), encoder.encode(large.slice(0, 1))[0])
        most = max(most, pa.total_allocated_bytes() - before)
    writer.finish(0)
    assert most < 14 << 20


def test_a_bucket_without_rows_has_a_base_too(tmp_path: Path) -> None:
    base = written(tmp_path, *texts([]))
    assert (len(base), base.info.rows, list(base.first_keys)) == (0, 0, [])
    check_file(tmp_path / base.info.name / "rows.arrow", base)


def test_the_base_says_what_it_is_of(tmp_path: Path) -> None:
    definition, rows, keys = texts(["a", None])
    wider = definition.add_columns(pa.schema([("more", pa.int8())]))
    rows = rows.append_column(wider.schema.arrow.field("more"), pa.array([1, None], pa.int8()))
    base = written(tmp_path / "t" / "bases" / "0003", wider, rows, keys)
    info, files = base.info, (tmp_path / "t" / "bases" / "0003" / base.info.name).iterdir()
    assert (info.incarnation, info.bucket, info.schema_id, info.log_offset, info.rows) == ("0" * 32, 3, 2, 7, 2)
    assert info.disk_bytes == sum(file.stat().st_size for file in files)
    assert base.schema.equals(wider.schema.arrow)


def test_what_was_read_is_a_view_of_the_map_and_outlives_base_and_files(tmp_path: Path) -> None:
    definition, rows, keys = texts(["a", "b", None])
    base = written(tmp_path, definition, rows, keys)
    batch, found, message = base.batch(0), base.keys(0), base.message(0)
    ends = message.address, message.address + message.size
    assert all(ends[0] <= b.address < ends[1] for column in batch.columns for b in column.buffers() if b is not None)
    remove_bases(tmp_path, but=None)
    assert list(tmp_path.iterdir()) == []
    assert exact_rows(base.batch(0)) == exact_rows(rows)
    del base
    assert exact_rows(batch) == exact_rows(rows)
    assert found.to_pylist() == keys.to_pylist()
    assert message == batch.serialize()


def test_a_zone_is_not_kept_of_long_values(tmp_path: Path) -> None:
    fits, long = "m" * 64, "é" * 33
    definition, rows, keys = texts(["a", fits, "b", long, None, None])
    with batches_of(2):
        base = written(tmp_path, definition, rows, keys)
    first, third = base.zone(0, "text"), base.zone(2, "text")
    assert first is not None
    assert first.greatest == pa.scalar(fits)
    assert base.zone(1, "text") is None
    assert third is not None
    assert (third.least, third.greatest, third.nulls) == (None, None, 2)


def test_zones_are_kept_of_the_key_and_the_columns_that_are_chosen(tmp_path: Path) -> None:
    definition = define(pa.schema([("k", pa.int64()), ("a", pa.int8()), ("b", pa.int8())]))
    rows, keys = numbered(definition, pa.RecordBatch.from_pylist([{"k": 0, "a": 1, "b": 2}], definition.schema.arrow))
    base = written(tmp_path, definition, rows, keys, zone_columns=["b"])
    assert [base.zone(0, name) is not None for name in ("k", "a", "b", "none such")] == [True, False, True, False]


@pytest.mark.parametrize("type_", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_nan_is_no_bound_but_is_noted(tmp_path: Path, type_: pa.DataType) -> None:
    nan = float("nan")
    definition = define(pa.schema([("k", pa.int64()), ("f", type_)]))
    values = pa.array(np.array([1, nan, nan, nan, -2, 3], np.float64)).cast(type_)
    with batches_of(2):
        base = written(
            tmp_path, definition, *numbered(definition, pa.RecordBatch.from_arrays([pa.nulls(6), values], ["k", "f"]))
        )
    assert [zone_values(base, number) for number in range(3)] == [(1, 1, True), (None, None, True), (-2, 3, False)]


def zone_values(base: ColumnarBase, number: int) -> tuple[Any, Any, bool]:
    zone = base.zone(number, "f")
    assert zone is not None
    return zone.least and zone.least.as_py(), zone.greatest and zone.greatest.as_py(), zone.has_nan


def test_zones_of_times_have_nanoseconds(tmp_path: Path) -> None:
    type_ = pa.timestamp("ns", "Europe/Berlin")
    definition = define(pa.schema([("k", pa.int64()), ("t", type_)]))
    times = pa.array([5, 1_000_000_001], pa.int64()).cast(type_)
    rows, keys = numbered(definition, pa.RecordBatch.from_arrays([pa.nulls(2), times], ["k", "t"]))
    zone = written(tmp_path, definition, rows, keys).zone(0, "t")
    assert zone is not None
    assert exact_values(pa.array([zone.least, zone.greatest], type_)) == [5, 1_000_000_001]


def test_the_newest_base_is_used_and_all_else_of_ours_removed(tmp_path: Path) -> None:
    directory = tmp_path / "0003"
    assert newest_base(directory, "bucket 3") is None
    table = texts(["a"])
    names = [written(directory, *table).info.name for _ in range(12)]
    assert names == sorted(set(names))
    unfinished = BaseWriter(directory, table[0], 3, now_micros=time.time_ns() // 1000)
    unfinished.write(*table[1:])
    (directory / "notes.txt").write_text("of somebody else")
    newest = newest_base(directory, "bucket 3")
    assert newest is not None
    assert newest.info.name == names[-1]
    assert {path.name for path in directory.iterdir()} == {names[-1], "notes.txt"}
    unfinished.discard()
    assert written(directory, *table).info.name > names[-1]


def test_removing_leaves_one_base(tmp_path: Path) -> None:
    names = [written(tmp_path, *texts(["a"])).info.name for _ in range(3)]
    remove_bases(tmp_path, but=names[1])
    assert [path.name for path in tmp_path.iterdir()] == [names[1]]
    remove_bases(tmp_path / "none such", but=None)


def test_the_name_of_a_base_that_was_removed_does_not_return(tmp_path: Path) -> None:
    names = []
    for _ in range(5):
        names.append(written(tmp_path, *texts(["a"])).info.name)
        remove_bases(tmp_path, but=None)
    assert names == sorted(set(names))


def test_a_base_that_nobody_has_any_more_holds_no_file(tmp_path: Path) -> None:
    def open_files() -> list[str]:
        """Returns the open files of the base. Other files of this process may be closed at any time."""
        files = list[str]()
        for number in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):
                files.append(os.readlink(f"/proc/self/fd/{number}"))
        return [file for file in files if file.startswith(str(tmp_path))]

    base = written(tmp_path, *texts(["a"]))
    batch = base.batch(0)
    assert open_files()
    del base
    gc.collect()
    assert not open_files()
    assert batch.num_rows == 1


def test_a_discarded_base_leaves_nothing_and_a_finished_one_stays(tmp_path: Path) -> None:
    table = texts(["a"])
    writer = BaseWriter(tmp_path, table[0], 0, now_micros=time.time_ns() // 1000)
    writer.write(*table[1:])
    writer.discard()
    writer.discard()
    assert list(tmp_path.iterdir()) == []
    writer = BaseWriter(tmp_path, table[0], 0, now_micros=time.time_ns() // 1000)
    path = writer.finish(1)
    writer.discard()
    assert list(tmp_path.iterdir()) == [path]


def test_a_base_under_the_name_of_another_is_refused(tmp_path: Path) -> None:
    base = written(tmp_path, *texts(["a"]))
    moved = (tmp_path / base.info.name).rename(tmp_path / ("f" * 16))
    with pytest.raises(DataLoss, match=f"it is the manifest of the base {base.info.name}"):
        ColumnarBase.open(moved, "bucket 3")
