from __future__ import annotations

import gzip
import io
import os
import struct
import sys
import threading
import zipfile
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from scankv.formats import file_memory
from scankv.formats.arrow_reader import open_arrow
from scankv.formats.files import (
    BadFile,
    Format,
    convert_errors,
    format_of_name,
    limit_memory_of_inputs,
    open_input,
)

if TYPE_CHECKING:
    from pathlib import Path

ROWS = pa.table({"a": [1, 2]})


def parquet_bytes() -> bytes:
    sink = io.BytesIO()
    pa.parquet.write_table(ROWS, sink)
    return sink.getvalue()


def arrow_bytes(*, file: bool) -> bytes:
    sink = io.BytesIO()
    with (pa.ipc.new_file if file else pa.ipc.new_stream)(sink, ROWS.schema) as writer:
        writer.write_table(ROWS)
    return sink.getvalue()


def zip_bytes(*members: str) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for member in members:
            archive.writestr(member, "a\n1\n")
    return sink.getvalue()


def changed_zip(place: int, value: int) -> bytes:
    """Returns an archive with one byte of its directory changed, counted from the signature of the first entry."""
    content = bytearray(zip_bytes("a.csv"))
    content[content.index(b"PK\x01\x02") + place] = value
    return bytes(content)


CONTENTS = {
    "csv": (b"a\n1\n", Format.CSV),
    "jsonl": (b'{"a":1}\n', Format.JSONL),
    "parquet": (parquet_bytes(), Format.PARQUET),
    "arrow file": (arrow_bytes(file=True), Format.ARROW),
    "arrow stream": (arrow_bytes(file=False), Format.ARROW),
    "csv.gz": (gzip.compress(b"a\n1\n"), Format.CSV),
    "jsonl.gz": (gzip.compress(b'{"a":1}\n'), Format.JSONL),
    "zip": (zip_bytes("a.csv"), Format.CSV),
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_the_format_is_found_from_the_first_bytes(tmp_path: Path, kind: str) -> None:
    content, format_ = CONTENTS[kind]
    path = tmp_path / "no-ending"
    path.write_bytes(content)
    with open_input(str(path)) as source:
        assert source.format is format_
        assert source.size_bytes == len(content)


@pytest.mark.parametrize("kind", CONTENTS)
@pytest.mark.parametrize("again", [False, True])
def test_standard_input_is_like_a_file(monkeypatch: pytest.MonkeyPatch, kind: str, again: bool) -> None:
    content, format_ = CONTENTS[kind]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))
    with open_input("-", again=again) as source:
        assert source.format is format_
        first = source.open().read()
        assert first
        if again:
            assert source.open().read() == first


def test_standard_input_is_read_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    done = threading.Event()

    def write() -> None:
        os.write(writer, b"a\n")
        done.wait(60)
        os.close(writer)

    thread = threading.Thread(target=write)
    thread.start()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(open(reader, "rb")))
    with open_input("-") as source:
        assert source.open().readline() == b"a\n"
        done.set()
    thread.join()


def test_the_ending_of_a_name_says_its_format() -> None:
    assert format_of_name("x.csv.gz") is Format.CSV
    assert format_of_name("x.NDJSON") is Format.JSONL
    assert format_of_name("a.b/x.parquet") is Format.PARQUET
    assert format_of_name("x.feather") is Format.ARROW
    assert format_of_name("x.txt") is format_of_name("x") is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CONTENTS["csv.gz"][0][:-6], "ended before the end"),
        (b"\x1f\x8b" + b"x" * 50, "Unknown compression method"),
        (CONTENTS["zip"][0][:-10], "not a zip file"),
        (zip_bytes("a.csv", "b.csv"), "must have one file, not 2"),
        (zip_bytes("[Content_Types].xml", "xl/workbook.xml"), "save the sheet as CSV, and load that"),
        (zip_bytes("mimetype", "content.xml"), "save the sheet as CSV, and load that"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "save the sheet as CSV, and load that"),
        (changed_zip(6, 84), "zip file version"),
        (changed_zip(8, 1), "encrypted"),
        (changed_zip(10, 99), "compression method"),
    ],
    ids=[
        "gzip cut short",
        "no gzip",
        "zip cut short",
        "two files",
        "workbook",
        "open workbook",
        "old workbook",
        "later version",
        "encrypted",
        "unknown method",
    ],
)
def test_a_damaged_archive_is_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    from tests.unit.cli.reading import infer

    path = tmp_path / "damaged"
    path.write_bytes(content)
    with pytest.raises(BadFile, match=message) as raised:
        infer(path)
    assert str(path) in raised.value.message


@pytest.mark.parametrize("kind", ["parquet", "arrow file", "arrow stream"])
def test_a_cut_file_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    from tests.unit.cli.reading import read

    path = tmp_path / "cut"
    path.write_bytes(CONTENTS[kind][0][:-60])
    with pytest.raises(BadFile, match=str(path)):
        read(path, ROWS.schema)


def test_a_file_that_cannot_be_opened_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"missing.csv: No such file"), open_input(str(tmp_path / "missing.csv")):
        pass
    with pytest.raises(BadFile, match=r"Is a directory"), open_input(str(tmp_path)):
        pass


def test_a_csv_file_that_python_cannot_split_is_refused_by_name(tmp_path: Path) -> None:
    from tests.unit.cli.reading import infer

    path = tmp_path / "odd.csv"
    path.write_bytes(b'a"b\rc"d,e\n1,2\n')
    with pytest.raises(BadFile, match=r"odd\.csv"):
        infer(path)


def test_an_arrow_file_with_offsets_beyond_its_memory_is_refused_by_name(tmp_path: Path) -> None:
    from tests.unit.cli.reading import read

    path, sink = tmp_path / "bad.arrows", pa.BufferOutputStream()
    good = pa.table({"a": pa.array(["a", "b"])})
    with pa.ipc.new_stream(sink, good.schema) as writer:
        writer.write_table(good)
    content = sink.getvalue().to_pybytes()
    place = content.index(struct.pack("<3i", 0, 1, 2))
    path.write_bytes(content[:place] + struct.pack("<3i", 0, 1, 2**30) + content[place + 12 :])
    with pytest.raises(BadFile, match=r"bad\.arrows"):
        read(path, good.schema)


def test_a_csv_row_of_wrong_length_that_is_not_utf8_is_refused_and_not_left_out(tmp_path: Path) -> None:
    from tests.unit.cli.reading import read

    path = tmp_path / "latin.csv"
    path.write_bytes(b"a,b\n1,2\n\xe4,3,4\n5,6\n")
    with pytest.raises(BadFile, match="3 fields instead of 2, and the row is not UTF-8"):
        read(path, pa.schema([("a", pa.int64()), ("b", pa.int64())]), skip=True)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit")
@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.represented_by("None")
def test_the_memory_for_a_pipe_rises_with_what_has_been_read_and_not_with_what_it_means(
    monkeypatch: pytest.MonkeyPatch, compression: str | None
) -> None:
    monkeypatch.setattr(file_memory, "_BASE_BYTES", 64 << 20)
    # 256 MiB, or 2 GiB: the allocator may have reserved one.
    rows = pa.record_batch(dict.fromkeys("k" if compression is None else "kabcdefg", np.zeros(1 << 25, np.int64)))
    reader, writer = os.pipe()

    def write() -> None:
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with (
            suppress(BrokenPipeError),
            open(writer, "wb") as stream,
            pa.ipc.new_stream(stream, rows.schema, options=options) as sink,
        ):
            sink.write_batch(rows)

    thread = threading.Thread(target=write)
    thread.start()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(open(reader, "rb")))
    found: int | str = 0
    try:
        with open_input("-") as source, limit_memory_of_inputs("-", [source]), convert_errors("-"):
            found = sum(batch.num_rows for batch in open_arrow(source.open()).batches)
    except BadFile as error:
        found = error.message
    thread.join()
    if compression is None:
        assert found == rows.num_rows
    else:
        assert "of a pipe what has been read of it" in str(found)
