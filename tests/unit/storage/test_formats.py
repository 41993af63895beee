"""Files and records of a newer version are refused by one error, and stay as they are."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from scankv.model.errors import DataLoss, NewerFormat
from scankv.model.rows.row_layout import ROW_FORMAT
from streaming_server.storage.bucket.bucket_state import BucketState
from streaming_server.storage.bucket.index_build import IndexBuild
from streaming_server.storage.bucket.writer_states import WriterState
from streaming_server.storage.changelog.records import Changes, RowKind, decode_record, encode_records
from streaming_server.storage.columnar.columnar_base import newest_base
from streaming_server.storage.files.checked_json import read_checked_json, write_checked_json
from streaming_server.storage.files.durable_watermark import DurableWatermark
from streaming_server.storage.files.formats import locate
from streaming_server.storage.files.frames import encode_frame, read_frames
from streaming_server.storage.rows.row_codec import RowCodec
from streaming_server.storage.tables.clock_file import ClockFile
from streaming_server.storage.tables.column_locks import LockFile
from streaming_server.storage.tables.consumers import ConsumerDirectory
from streaming_server.storage.transactions.transaction_log import TransactionLog
from tests.support.tables import define

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def write_newer(file: Path) -> bytes:
    """Writes a JSON file as a newer version might: with another format, and another checksum."""
    write_checked_json(file, {})
    newer = json.dumps({**json.loads(file.read_text()), "format": 2, "crc32c": "of another kind"}).encode()
    file.write_bytes(newer)
    return newer


def test_a_newer_json_file_is_refused_by_its_path(tmp_path: Path) -> None:
    newer = write_newer(tmp_path / "file.json")
    with pytest.raises(NewerFormat, match=rf"{tmp_path}/file.json has format 2, .*newer ScanKV.*upgrade the server"):
        read_checked_json(tmp_path / "file.json")
    assert (tmp_path / "file.json").read_bytes() == newer


def test_a_json_file_of_the_first_version_has_no_format(tmp_path: Path) -> None:
    write_checked_json(tmp_path / "file.json", {"a": 1})
    stored = json.loads((tmp_path / "file.json").read_text())
    del stored["format"]
    (tmp_path / "file.json").write_text(json.dumps(stored))
    assert read_checked_json(tmp_path / "file.json") == {"a": 1}


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("clock.json", lambda path: ClockFile(path).read(is_new=False)),
        ("column-locks.json", lambda path: LockFile(path).read()),
    ],
)
def test_a_newer_file_does_not_count_as_damaged(tmp_path: Path, name: str, read: Callable[[Path], object]) -> None:
    """Damaged files of these kinds count as empty, and are replaced."""
    newer = write_newer(tmp_path / name)
    with pytest.raises(NewerFormat, match=name):
        read(tmp_path)
    assert (tmp_path / name).read_bytes() == newer


def test_a_newer_consumer_is_reported(tmp_path: Path) -> None:
    (tmp_path / "consumers").mkdir()
    write_newer(tmp_path / "consumers" / "billing.json")
    ((name, error),) = ConsumerDirectory(tmp_path).read()
    assert name == "billing"
    assert isinstance(error, NewerFormat)


def test_a_newer_record_of_a_file_is_not_taken_for_a_torn_one(tmp_path: Path) -> None:
    (tmp_path / "log-0").write_bytes(encode_frame({"a": 1}) + encode_frame({"format": 2, "a": 2}))
    before = (tmp_path / "log-0").read_bytes()
    with pytest.raises(NewerFormat, match=f"a record of {tmp_path}/log-0 has format 2"):
        list(read_frames(tmp_path / "log-0"))
    with pytest.raises(NewerFormat):
        TransactionLog(tmp_path)
    assert (tmp_path / "log-0").read_bytes() == before


def test_a_newer_watermark_is_refused(tmp_path: Path) -> None:
    newer = b"SKVMARK2" + bytes(30)
    (tmp_path / "0.durable").write_bytes(newer)
    watermark = DurableWatermark(tmp_path / "0.durable")
    try:
        with pytest.raises(NewerFormat, match=r"0\.durable has format 2"):
            watermark.read()
    finally:
        watermark.close()
    assert (tmp_path / "0.durable").read_bytes() == newer


def test_newer_records_of_a_bucket_are_refused() -> None:
    state = {**json.loads(BucketState().to_bytes()), "format": 2, "of_a_newer_version": 1}
    with pytest.raises(NewerFormat, match="its state has format 2"):
        BucketState.from_bytes(json.dumps(state).encode())
    build = {**json.loads(IndexBuild().to_bytes()), "format": 2}
    with pytest.raises(NewerFormat, match="index build has format 2"):
        IndexBuild.from_bytes(json.dumps(build).encode())
    with pytest.raises(NewerFormat, match="writer has format 3"):
        WriterState.from_bytes(b"\x03" + WriterState().to_bytes()[1:])


def test_a_newer_columnar_base_is_neither_read_nor_removed(tmp_path: Path) -> None:
    base = tmp_path / f"{0:016x}"
    base.mkdir()
    write_checked_json(base / "manifest.json", {"format": 4})
    before = (base / "manifest.json").read_bytes()
    assert newest_base(tmp_path, "bucket 0") is None
    assert (base / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("header", [bytes([ROW_FORMAT + 1, 0]), bytes([ROW_FORMAT, 1])], ids=["format", "flags"])
def test_a_newer_row_is_refused(header: bytes) -> None:
    codec = RowCodec(define(pa.schema([pa.field("k", pa.int32(), nullable=False)])))
    row = header + struct.pack("<I", 0) + bytes(100)
    with pytest.raises(NewerFormat, match="stored row has format"):
        codec.decoder().decode(pa.array([row], pa.binary()))


@pytest.mark.parametrize("header", [b"\x05\x00", b"\x01\x01"], ids=["format", "flags"])
def test_a_newer_record_of_the_changelog_is_refused(header: bytes) -> None:
    definition = define(pa.schema([pa.field("k", pa.int32(), nullable=False)]))
    rows = pa.record_batch([pa.array([1], pa.int32())], schema=definition.schema.arrow)
    changes = Changes(np.array([RowKind.INSERT], np.uint8), rows)
    ((key, value),) = encode_records(changes, epoch=0, count=0, schema_id=definition.schema.id, commit_micros=1)
    assert decode_record(key, value, definition).changes.rows.equals(rows)
    with pytest.raises(NewerFormat, match="changelog record at offset 0 has format"):
        decode_record(key, header + value[2:], definition)


def test_a_location_keeps_the_kind_of_an_error() -> None:
    assert type(locate(NewerFormat("a"), "b")) is NewerFormat
    assert locate(DataLoss("a", bucket=1), "b").details == {"bucket": "1"}
