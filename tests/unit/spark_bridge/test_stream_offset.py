"""Offsets of a streaming query round-trip exactly through the checkpoint."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from scankv.model.errors import UsageError
from spark_bridge.stream_offset import INITIAL, FileProgress, SnapshotProgress, StreamOffset

CHANGES = StreamOffset(name="game.t", table="t", consumer_id="c", log_offsets={0: 1, 10: 2**63 - 1, 9: 5})
FIRST = StreamOffset(name="game.t", table="t", consumer_id="c", log_offsets={0: 1}, since={0: 0})
ROWS = SnapshotProgress(snapshot_id="s", parts=7, next=3)
AMONG_ROWS = StreamOffset(name="game.t", table="t", consumer_id="c", log_offsets={0: 1}, rows=ROWS)
AMONG_FILES = replace(CHANGES, lake=FileProgress(version=3, commit_id="c", files=7, next=2))
AMONG_EXPIRING = replace(AMONG_ROWS, rows=replace(ROWS, expires=True))


@pytest.mark.parametrize("offset", [CHANGES, FIRST, AMONG_ROWS, AMONG_EXPIRING, AMONG_FILES])
def test_an_offset_comes_back_from_a_checkpoint_to_the_letter(offset: StreamOffset) -> None:
    text = json.dumps(offset.to_json())
    again = StreamOffset.from_json(json.loads(text))
    assert again == offset
    assert json.dumps(again.to_json()) == text


def test_the_offset_of_a_query_that_has_not_begun_is_always_the_same() -> None:
    assert StreamOffset.from_json(json.loads(json.dumps(INITIAL))) is None


def test_buckets_stand_in_order_however_they_came() -> None:
    other = StreamOffset(name="game.t", table="t", consumer_id="c", log_offsets={9: 5, 10: 2**63 - 1, 0: 1})
    assert json.dumps(other.to_json()) == json.dumps(CHANGES.to_json())


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"version": 2, "table": "t", "consumer": "c", "offsets": {}},
        {"version": 1, "table": "t", "consumer": "c", "offsets": {"x": 1}},
        {"version": 1, "table": "t", "consumer": "c", "offsets": [1]},
        {"version": 1, "table": "t", "consumer": "c", "offsets": {}, "rows": {"snapshot": "s"}},
        {"partition-0": 3},
    ],
)
def test_an_offset_of_something_else_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="another checkpoint"):
        StreamOffset.from_json(values)
