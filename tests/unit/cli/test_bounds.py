from __future__ import annotations

import gzip
import io
import json
import random
import time
import tracemalloc
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyarrow import parquet

from scankv.formats import arrow_reader, bounds, csv_rows, inference, jsonl_reader
from scankv.formats.bounds import MAX_JSON_LEVELS, BeyondBoundsError, check_json_levels
from scankv.formats.files import BadFile
from scankv.model.limits import MAX_COLUMNS, MAX_NESTING
from scankv.model.types.types import parse_schema
from tests.unit.cli.reading import infer, read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCORES = parse_schema("player string not null, score int64")
LISTS = parse_schema("player string not null, score list<int64>")
MANY = [f"c{number}" for number in range(MAX_COLUMNS + 1)]
DEPTHS = [MAX_JSON_LEVELS, 10_000, 100_000]


def lists(depth: int) -> str:
    return "[" * depth + "]" * depth


def objects(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


@pytest.mark.parametrize("nested", [lists, objects])
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.represented_by("100-lists")
def test_a_line_that_is_nested_too_deeply_is_a_bad_row(
    tmp_path: Path, nested: Callable[[int], str], depth: int
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f'{{"player": "ann"}}\n{{"player": "bob", "score": {nested(depth)}}}\n{{"player": "cid"}}\n')
    reason = "line 2: the line has more than 100 levels of lists and objects; this is the limit"
    for schema in (SCORES, LISTS):
        with pytest.raises(BadFile) as raised:
            read(file, schema)
        assert raised.value.message == f"file: {reason}"
        skipped = read(file, schema, skip=True)
        assert skipped.reported == [reason]
        assert skipped.rows["player"].to_pylist() == ["ann", "cid"]
    with pytest.raises(BadFile, match="line 2: the line has more than 100 levels"):
        infer(file)


@pytest.mark.breadth
def test_nesting_over_several_lines_and_behind_texts_is_found(tmp_path: Path) -> None:
    file, deep = tmp_path / "rows.jsonl", 30_000
    for text in (
        "[\n" * deep,
        '{"a":\n' * deep,
        '{"player": "]]]]"}\n' * deep + '{"player":\n[' * deep,
        '{"player": "\n' + '"}\n{"player":\n[' * deep,
        '{"player": "' + "]" * deep + '", "score": ' + "[" * deep,
        '{"player": "\\"' + "]" * deep + '\\\\", "score": ' + "[" * deep,
    ):
        file.write_text(text)
        for schema in (SCORES, LISTS):
            with pytest.raises(BadFile):
                read(file, schema)
        with pytest.raises(BadFile):
            infer(file)


def test_the_deepest_type_of_a_column_is_within_the_limit() -> None:
    value = "1"
    for _ in range(MAX_NESTING):
        value = f'[{{"key": "a", "value": {value}}}]'
    check_json_levels(f'{{"a": {value}}}'.encode())


def test_brackets_in_texts_and_next_to_each_other_are_no_levels() -> None:
    brackets = "[{" * MAX_JSON_LEVELS
    check_json_levels((json.dumps({"a": brackets, "b": f'"{brackets}\\"'}) + "\n").encode() * 3)
    check_json_levels(json.dumps({"a": [{"b": []}] * MAX_JSON_LEVELS * 2}).encode())
    with pytest.raises(BeyondBoundsError):
        check_json_levels(lists(MAX_JSON_LEVELS + 1).encode())


def test_levels_are_the_same_wherever_a_piece_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = random.Random(47)
    monkeypatch.setattr(bounds, "MAX_JSON_LEVELS", 1000)
    for _ in range(300):
        data = bytes(chosen.choices(b'[{]}"\\\na', (3, 3, 1, 1, 2, 2, 1, 1), k=chosen.randrange(1, 60)))
        monkeypatch.setattr(bounds, "_PIECE_BYTES", 1 << 20)
        whole = bounds._levels(data)
        for size in (1, 2, 3, 7):
            monkeypatch.setattr(bounds, "_PIECE_BYTES", size)
            assert bounds._levels(data) == whole, (data, size)


def test_the_depth_of_a_long_line_is_found_in_little_memory() -> None:
    data = b"[" + b"[]," * (5 << 20) + b"]"
    tracemalloc.start()
    try:
        check_json_levels(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(data)


def test_long_lines_with_json_as_text_take_time_in_proportion_to_their_length(tmp_path: Path) -> None:
    escaped = json.dumps({"id": 1, "payload": json.dumps([{"a": "b"}] * 10_000)}).encode()
    # A string that is not closed, and one that ends within an escape.
    for line in (escaped, escaped[:-2], escaped[:-2] + b"\\"):
        started = time.process_time()
        bounds.check_json_names(line)
        # A millisecond, or a minute if each escaped quote started another search.
        assert time.process_time() - started < 5
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"id": 1, "payload": json.dumps([{"a": "b"}] * 80_000)}) + "\n")
    assert infer(file) == parse_schema("id int64, payload string")


def test_only_names_count_as_fields_of_a_long_line() -> None:
    names = [f"c{number}" for number in range(10_001)]
    texts = json.dumps({"a": names, "b": [json.dumps({name: 1}) for name in names]}).encode()
    bounds.check_json_names(texts)
    bounds.check_json_names(json.dumps(dict.fromkeys(names[:-1], 'x": ')).encode())
    with pytest.raises(BeyondBoundsError):
        bounds.check_json_names(json.dumps(dict.fromkeys(names, 1)).replace('":', '" \n :').encode())


def test_nested_json_in_a_field_of_csv_is_a_bad_row(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(f'player,score\nann,{lists(100_000)}\nbob,"[1]"\n')
    skipped = read(file, LISTS, skip=True)
    assert skipped.rows.to_pylist() == [{"player": "bob", "score": [1]}]
    assert "has more than 100 levels of lists and objects; this is the limit" in skipped.reported[0]
    assert skipped.reported[0].startswith('row 2: column "score": "[[[[')


@pytest.mark.parametrize("value", ["[]", "[1]", "[[]]", "{}", '{"a": 1}', '[{"a": [1.5]}]'])
@pytest.mark.parametrize("type_", ["int64", "list<int64>", "struct<b int64>", "map<string, int64>"])
def test_a_nested_value_of_another_type_is_a_bad_row_or_a_value(tmp_path: Path, value: str, type_: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f'{{"player": "ann", "score": {value}}}\n')
    read_rows = read(file, parse_schema(f"player string, score {type_}"), skip=True)
    assert read_rows.rows.num_rows + len(read_rows.reported) == 1


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
def test_a_line_that_does_not_end_is_refused_and_not_collected(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MAX_LINE_BYTES", 1 << 20)
    for module in (csv_rows, jsonl_reader):
        monkeypatch.setattr(module, "_BLOCK_BYTES", 1 << 16)
    file = tmp_path / f"{name}.gz"
    start = 'player,score\n"' if name.endswith("csv") else '{"player": "'
    file.write_bytes(gzip.compress(start.encode() + b"a" * (20 << 20), 1))
    with pytest.raises(BadFile, match="has more than 1,048,576 bytes; this is the limit: end each row with"):
        read(file, SCORES)


@pytest.mark.breadth
def test_a_header_of_very_many_lines_takes_time_in_proportion_to_its_length() -> None:
    started = time.process_time()
    with pytest.raises(ValueError, match="a quote in the header is not closed"):
        csv_rows.read_header(io.BufferedReader(io.BytesIO(b'"' + b"\n" * (1 << 19))))
    # Less than a second, or minutes if each line were read again with each line after it.
    assert time.process_time() - started < 20


def test_files_with_more_columns_than_a_table_can_have_are_refused(tmp_path: Path) -> None:
    table = pa.table({name: [1] for name in MANY})
    text, stream, file, columnar = (tmp_path / name for name in ("a.csv", "a.arrows", "a.arrow", "a.parquet"))
    text.write_text(",".join(MANY * 100) + "\n")
    parquet.write_table(table, columnar)
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    for path, count in ((text, "100,100"), (stream, "1,001"), (file, "1,001"), (columnar, "1,001")):
        with pytest.raises(BadFile, match=f"has {count} columns; the limit is 1,000: leave some out"):
            infer(path)


@pytest.mark.breadth
def test_lines_whose_fields_all_differ_are_refused_before_they_need_a_cell_for_each_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MAX_COLUMNS", 100)
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"c{number}": 1}}\n' for number in range(20_000)))
    with pytest.raises(BadFile, match=r"line 101: the line together with the lines before has 101 columns; the"):
        infer(file)
    file.write_text(json.dumps(dict.fromkeys(map(str, range(20_000)), 1)))
    with pytest.raises(BadFile, match="line 1: the line has more than 10,000 different fields at all depths"):
        infer(file)
    with pytest.raises(BadFile, match="line 1: the line has more than 10,000 different fields at all depths"):
        read(file, SCORES)


def test_a_block_has_a_bounded_number_of_cells_and_rows_keep_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "_CELLS", 10_000)
    schema = pa.schema([(name, pa.int64()) for name in MANY[:100]])
    most, file = bounds.rows_at_once(schema), tmp_path / "rows.jsonl"
    file.write_text("{}\n" * (2 * most + 1) + '{"c7": "x"}\n')
    with file.open("rb") as stream:
        assert [len(block) for block in jsonl_reader.read_jsonl(stream, schema)] == [most, most, 2]
    with pytest.raises(BadFile, match=f'line {2 * most + 2}: column "c7" is string, not int64'):
        read(file, schema)


@pytest.mark.breadth
def test_inference_reads_pieces_of_lines_in_order(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": 1}\n' * 20_000 + '{"a": "x"}\n')
    with file.open("rb") as stream:
        pieces = list(inference._pieces(stream))
    assert len(pieces) > 2
    assert b"".join(piece.data for piece in pieces) == file.read_bytes()
    with pytest.raises(BadFile, match="line 20001: "):
        infer(file)


def test_long_values_of_parquet_are_read_in_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_reader, "_BATCH_BYTES", 64 << 10)
    file = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"v": [b"x" * 1024] * 200}), file, use_dictionary=False)
    with file.open("rb") as stream:
        assert 30 < max(len(batch) for batch in arrow_reader.open_parquet(stream).batches) <= 64


def test_an_empty_row_group_of_parquet_makes_no_small_batches(tmp_path: Path) -> None:
    file, schema = tmp_path / "rows.parquet", pa.schema([("v", pa.int64())])
    with parquet.ParquetWriter(file, schema) as writer:
        for count in (0, 5_000, 0):
            writer.write_batch(pa.record_batch([pa.array(range(count), pa.int64())], schema))
    with file.open("rb") as stream:
        assert parquet.ParquetFile(stream).num_row_groups == 3
        blocks = arrow_reader.read_typed(arrow_reader.open_parquet(stream), schema, {})
        assert [len(block) for block in blocks if len(block)] == [5_000]
