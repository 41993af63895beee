"""Keys are accepted in all documented forms, and errors name the invalid key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from aio_client import InvalidKey
from aio_client._input.keys import check_key_sizes, is_one_key, keys_of
from scankv.model.types.types import parse_schema

ONE = parse_schema("player string not null")
TWO = parse_schema("day date32 not null, id int32 not null")
NUMBER = parse_schema("id int64 not null")
DAY = pd.Timestamp("2020-01-02").date()


def values(keys: object, schema: pa.Schema) -> list[tuple[Any, ...]]:
    batch = keys_of(keys, schema)
    assert batch.schema == schema
    return [tuple(row.values()) for row in batch.to_pylist()]


@pytest.mark.parametrize("key", ["ann", ("ann",), {"player": "ann"}, b"ann", 7])
def test_one_key_is_told_from_many(key: object) -> None:
    assert is_one_key(key)


@pytest.mark.parametrize("keys", [["ann"], {"ann"}, iter(["ann"]), np.array(["ann"]), pa.table({"player": ["ann"]})])
def test_many_keys_are_told_from_one(keys: object) -> None:
    assert not is_one_key(keys)


@pytest.mark.parametrize(
    "keys",
    [
        ["ann", "bob"],
        [("ann",), {"player": "bob"}],
        iter(["ann", "bob"]),
        {"ann": 1, "bob": 2}.keys(),
        np.array(["ann", "bob"]),
        pa.array(["ann", "bob"]),
        pa.chunked_array([["ann"], ["bob"]]),
        pd.Series(["ann", "bob"]),
        pl.Series(["ann", "bob"]),
        pa.record_batch({"player": ["ann", "bob"]}),
        pa.table({"score": [1, 2], "player": ["ann", "bob"]}),
        pa.table({"player": ["ann", "bob"]}).to_reader(),
        pd.DataFrame({"player": ["ann", "bob"], "score": [1, 2]}),
        pd.DataFrame({"player": ["ann", "bob"], "score": [1, 2]}).set_index("player"),
        pl.DataFrame({"player": ["ann", "bob"]}),
    ],
    ids=lambda keys: type(keys).__name__,
)
def test_every_form_of_many_keys_is_understood(keys: object) -> None:
    assert values(keys, ONE) == [("ann",), ("bob",)]


@pytest.mark.parametrize("key", ["ann", ("ann",), {"player": "ann"}])
def test_every_form_of_one_key_is_understood(key: object) -> None:
    assert values(key, ONE) == [("ann",)]


@pytest.mark.parametrize(
    "keys",
    [
        (DAY, 1),
        {"id": 1, "day": DAY},
        [(DAY, 1)],
        pa.table({"id": [1], "day": [DAY], "other": ["x"]}),
        pd.DataFrame({"id": [1], "day": [DAY]}),
    ],
)
def test_a_key_of_many_columns_comes_in_key_order(keys: object) -> None:
    assert values(keys, TWO) == [(DAY, 1)]


def test_a_range_of_numbers_is_many_keys() -> None:
    assert values(range(3), NUMBER) == [(0,), (1,), (2,)]
    assert values(np.arange(3, dtype=np.int8), NUMBER) == [(0,), (1,), (2,)]


@pytest.mark.parametrize("keys", [[], pa.table({"player": pa.array([], pa.string())}), iter([]), np.array([], "U1")])
def test_no_keys_are_no_keys(keys: object) -> None:
    assert values(keys, ONE) == []


@pytest.mark.parametrize(
    ("keys", "schema", "message", "details"),
    [
        (["ann", None], ONE, 'key column "player", row 1.* null', {"column": "player", "row": "1"}),
        (["ann", 7], ONE, 'key column "player", row 1: 7 cannot be cast to string', {"column": "player", "row": "1"}),
        (("ann", "bob"), ONE, r"2 values.* \(player\); several keys go into a list", {"row": "0"}),
        ("ann", TWO, r"1 values.* \(day, id\); write it as a tuple", {"row": "0"}),
        ([(DAY, 1), (DAY,)], TWO, "key 1 has 1 values", {"row": "1"}),
        ({"playr": "ann"}, ONE, '"playr" is not a key column; did you mean "player"', {"column": "playr", "row": "0"}),
        ({"day": DAY}, TWO, 'key column "id" is missing', {"column": "id", "row": "0"}),
        ({"player": "ann", "score": 1}, ONE, '"score" is not a key column', {"column": "score", "row": "0"}),
        ([2**31], parse_schema("id int32"), 'key column "id", row 0', {"column": "id", "row": "0"}),
        (pa.table({"score": [1]}), ONE, 'column "player" is missing', {"column": "player"}),
        (pa.table({"player": ["a", None]}), ONE, 'column "player", row 1', {"column": "player", "row": "1"}),
        (np.array([1]), TWO, "an array has keys of one column", {}),
        (pa.array([1.5]), NUMBER, 'column "id", row 0', {"column": "id", "row": "0"}),
    ],
)
def test_a_bad_key_is_named(keys: object, schema: pa.Schema, message: str, details: dict[str, str]) -> None:
    with pytest.raises(InvalidKey, match=message) as caught:
        keys_of(keys, schema)
    assert caught.value.details == details


@pytest.mark.parametrize("text", ["x" * 16_383, "\x00" * 8192])
def test_a_key_over_the_limit_is_found_by_its_row_before_it_is_sent(text: str) -> None:
    rows = pa.record_batch({"player": ["a" * 9000, "b", text, text]})
    with pytest.raises(InvalidKey, match=r"row 12: the key has .* bytes") as caught:
        check_key_sizes(rows, ONE, first_row=10)
    assert caught.value.details["row"] == "12"


def test_a_key_at_the_limit_passes() -> None:
    check_key_sizes(pa.record_batch({"player": ["x" * 16_382, "\x00" * 8191]}), ONE)
