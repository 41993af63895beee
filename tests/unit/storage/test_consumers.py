"""The files of consumers: durable, complete, and with damage detected."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from scankv.model.errors import DataLoss, InvalidRequest
from scankv.model.names import check_consumer_id
from streaming_server.storage.tables.consumers import ConsumerDirectory, ConsumerRecord

if TYPE_CHECKING:
    from pathlib import Path

IDS = ["a", "A.b-c_9", "a.json", "a.json.partial", "-", "...", "x" * 128]


def record(
    consumer_id: str, fence: int = 1, token: bytes = b"\0token\xff", committed_micros: int = 0
) -> ConsumerRecord:
    return ConsumerRecord(consumer_id=consumer_id, fence=fence, token=token, committed_micros=committed_micros)


def test_what_was_written_is_read_by_id(tmp_path: Path) -> None:
    directory = ConsumerDirectory(tmp_path)
    assert list(directory.read()) == []
    for number, consumer_id in enumerate(IDS):
        check_consumer_id(consumer_id)
        directory.write(record(consumer_id))
        directory.write(record(consumer_id, number, bytes([number]), 2**60))
    assert dict(ConsumerDirectory(tmp_path).read()) == {
        consumer_id: record(consumer_id, number, bytes([number]), 2**60) for number, consumer_id in enumerate(IDS)
    }


@pytest.mark.parametrize("rows_position", [b"", b"\0within files\xff"])
def test_a_position_within_rows_is_stored(tmp_path: Path, rows_position: bytes) -> None:
    stored = ConsumerRecord(consumer_id="a", fence=1, token=b"t", committed_micros=2, rows_position=rows_position)
    ConsumerDirectory(tmp_path).write(stored)
    assert dict(ConsumerDirectory(tmp_path).read()) == {"a": stored}
    assert ConsumerRecord.from_json(stored.to_json()) == stored
    assert ("rows_position" in stored.to_json()) is bool(rows_position)


def test_the_time_of_a_move_is_stored_and_may_be_missing(tmp_path: Path) -> None:
    moved, earlier = replace(record("a"), moved_micros=7), record("b", committed_micros=5)
    for each in (moved, earlier):
        ConsumerDirectory(tmp_path).write(each)
        assert ConsumerRecord.from_json(each.to_json()) == each
        assert ("moved_micros" in each.to_json()) is bool(each.moved_micros)
    assert dict(ConsumerDirectory(tmp_path).read()) == {"a": moved, "b": earlier}
    assert [each.is_later_than(6) for each in (moved, earlier)] == [True, False]


def test_what_was_removed_is_gone_and_may_be_removed_again(tmp_path: Path) -> None:
    directory = ConsumerDirectory(tmp_path)
    directory.remove("a")
    directory.write(record("a"))
    directory.write(record("b"))
    directory.remove("a")
    directory.remove("a")
    assert [consumer_id for consumer_id, _ in directory.read()] == ["b"]


@pytest.mark.parametrize("place", [2, 40, -30])
def test_a_changed_byte_is_data_loss_of_that_consumer_alone(tmp_path: Path, place: int) -> None:
    directory = ConsumerDirectory(tmp_path)
    directory.write(record("a"))
    directory.write(record("b"))
    file = tmp_path / "consumers" / "a.json"
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)
    found = dict(directory.read())
    assert isinstance(found["a"], DataLoss)
    assert "a.json" in found["a"].message
    assert found["b"] == record("b")


def test_what_a_crash_left_of_a_write_is_no_consumer(tmp_path: Path) -> None:
    directory = ConsumerDirectory(tmp_path)
    directory.write(record("a"))
    (tmp_path / "consumers" / "b.json.partial").write_text('{"crc')
    assert [consumer_id for consumer_id, _ in directory.read()] == ["a"]


@pytest.mark.parametrize("consumer_id", ["", ".", "..", "a/b", "../a", "a b", "x" * 129, "é", "a\n", "a\0", None, 5])
def test_what_could_be_no_file_or_another_is_no_id(consumer_id: object) -> None:
    with pytest.raises(InvalidRequest, match="1 to 128 of"):
        check_consumer_id(consumer_id)
