"""The answers to lookups are joined into one table."""

from __future__ import annotations

import pyarrow as pa
import pytest

from aio_client import ProtocolViolation
from aio_client._input.requests import to_ipc
from aio_client._queries.lookup import LookupAnswer, join_answers, look_up_pieces
from scankv.model.types.types import parse_schema
from scankv.v1.lookup_pb2 import LookupResponse

SCHEMA = parse_schema("id double not null, name string not null, tags list<item: int64>")
KEYS = pa.record_batch({"id": [3.0, 1.0, 2.0, 1.0]})


def rows(*ids: float) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": id_, "name": f"n{id_}", "tags": [1]} for id_ in ids], schema=SCHEMA)


def answer(found: list[int], *ids: float, keys: pa.RecordBatch = KEYS) -> LookupAnswer:
    return LookupAnswer.decode(keys, LookupResponse(rows=to_ipc(rows(*ids)), found=bytes(found)))


def test_keys_without_a_row_are_left_out() -> None:
    table = join_answers([answer([0, 1, 1, 1], 1, 2, 1)], SCHEMA, fill_missing=False)
    assert table.column("id").to_pylist() == [1, 2, 1]
    assert table.schema == SCHEMA


def test_keys_without_a_row_are_null_but_for_the_key() -> None:
    table = join_answers([answer([0, 1, 0, 1], 1, 1)], SCHEMA, fill_missing=True)
    assert table.to_pylist() == [
        {"id": 3.0, "name": None, "tags": None},
        {"id": 1.0, "name": "n1", "tags": [1]},
        {"id": 2.0, "name": None, "tags": None},
        {"id": 1.0, "name": "n1", "tags": [1]},
    ]
    assert not table.schema.field("id").nullable
    assert table.schema.field("name").nullable
    table.validate(full=True)


def test_a_row_keeps_the_key_that_is_stored() -> None:
    stored = answer([1], 0.0, keys=pa.record_batch({"id": [-0.0]}))
    assert str(join_answers([stored], SCHEMA, fill_missing=True).column("id")[0].as_py()) == "0.0"


def test_answers_are_joined_in_their_order() -> None:
    table = join_answers([answer([1, 0, 0, 0], 3), answer([0, 0, 0, 1], 1)], SCHEMA, fill_missing=False)
    assert table.column("id").to_pylist() == [3, 1]


@pytest.mark.asyncio
@pytest.mark.parametrize("now", [("one", 8), ("other", 7)])
async def test_a_lookup_of_several_requests_begins_again_if_the_table_was_altered_between_them(
    now: tuple[str, int],
) -> None:
    columns = [("one", 7), now, now, now]

    async def find(keys: pa.RecordBatch) -> list[LookupAnswer]:
        table_incarnation, schema_id = columns.pop(0)
        response = LookupResponse(
            rows=to_ipc(rows(1)), found=bytes([0, 1, 0, 0]), table_incarnation=table_incarnation, schema_id=schema_id
        )
        return [LookupAnswer.decode(keys, response)]

    answers = await look_up_pieces(find, [KEYS, KEYS], "game.scores", 60)
    assert [each.columns for each in answers] == [now, now]
    assert not columns


def test_an_answer_with_a_column_more_is_joined() -> None:
    wider = rows(1).append_column("more", pa.array(["x"]))
    after = LookupAnswer.decode(KEYS, LookupResponse(rows=to_ipc(wider), found=bytes([0, 1, 0, 0])))
    table = join_answers([answer([1, 0, 0, 0], 3), after], SCHEMA, fill_missing=False)
    assert table.column("more").to_pylist() == [None, "x"]


def test_no_answers_are_an_empty_table() -> None:
    assert join_answers([], SCHEMA, fill_missing=True).schema == SCHEMA


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (to_ipc(rows(1)), bytes([1, 0, 0])),
        (to_ipc(rows(1)), bytes([1, 1, 0, 0])),
        (to_ipc(rows(1)), bytes(4)),
        (b"", bytes(4)),
        (b"not arrow", bytes(4)),
    ],
)
def test_an_answer_that_does_not_add_up_is_refused(data: bytes, found: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="answered a lookup"):
        LookupAnswer.decode(KEYS, LookupResponse(rows=data, found=found))
