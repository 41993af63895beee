"""Calls of the client agree in what they take, and say what to use instead of what they do not take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from aio_client import InvalidKey, InvalidRequest, UsageError
from aio_client._sync.base import Blocking

if TYPE_CHECKING:
    from aio_client import Client, Table

pytestmark = pytest.mark.asyncio

ROWS = [{"player": player, "day": day, "score": 10 * day} for player in ("ann", "bob") for day in (1, 2)]


async def made(client: Client, name: str) -> Table:
    table = await client.create_table(name, "player string, day int32, score int64", primary_key=["player", "day"])
    await table.upsert(ROWS)
    return table


async def test_columns_are_text_as_the_command_line_takes_it(client: Client, name: str) -> None:
    table = await client.create_table(name, 'a int64, "odd name" decimal(10, 2), b string not null', primary_key=["a"])
    fields = [
        pa.field("a", pa.int64(), nullable=False),
        pa.field("odd name", pa.decimal128(10, 2)),
        pa.field("b", pa.string(), nullable=False),
    ]
    assert table.schema == pa.schema(fields)
    table = await client.alter_table(name, add_columns="c double")
    assert table.schema.field("c").type == pa.float64()
    with pytest.raises(InvalidRequest, match=r'at "int65" .*did you mean "int64"'):
        await client.create_table(f"{name}x", "a int65", primary_key=["a"])
    with pytest.raises(UsageError, match=r'must be a pyarrow\.Schema, or text such as "player string, score int64"'):
        await client.create_table(f"{name}x", ["a"], primary_key=["a"])
    copied = await client.bootstrap(f"{name}b", [{"a": 1}], primary_key=["a"], schema="a int16")
    assert copied.schema.field("a").type == pa.int16()


KEYS = [("ann", 1), ("bob", 2)]
SEVERAL = {
    "tuples": KEYS,
    "dictionaries": [{"day": day, "player": player} for player, day in KEYS],
    "iterator": KEYS,
    "arrow": pa.table({"day": pa.array([1, 2], pa.int32()), "player": ["ann", "bob"], "more": [0, 0]}),
    "pandas": pd.DataFrame({"player": ["ann", "bob"], "day": [1, 2]}),
    "polars": pl.DataFrame({"player": ["ann", "bob"], "day": [1, 2]}),
}


@pytest.mark.parametrize("form", SEVERAL)
async def test_every_call_that_takes_keys_takes_the_same_forms(client: Client, name: str, form: str) -> None:
    table = await made(client, name)

    def keys() -> object:
        return iter(KEYS) if form == "iterator" else SEVERAL[form]

    wanted = [ROWS[0], ROWS[3]]
    assert (await table.lookup(keys())).to_pylist() == wanted
    async with client.transaction() as transaction:
        assert (await transaction.lookup(table, keys())).to_pylist() == wanted
        assert (await transaction.get_for_update(table, keys())).to_pylist() == wanted
        await transaction.delete(table, keys())
    assert await table.count() == 2
    await table.upsert(ROWS)
    async with table.writer() as writer:
        await writer.delete(keys())
    assert await table.count() == 2
    await table.upsert(ROWS)
    assert (await table.delete(keys())).rows == 2
    assert await table.count() == 2


async def test_one_key_is_a_tuple_or_a_dictionary_or_a_scalar_everywhere(client: Client, name: str) -> None:
    table = await made(client, name)
    single = await client.create_table(f"{name}s", "k int64", primary_key=["k"])
    for of, key in ((table, ("ann", 1)), (table, {"day": 1, "player": "ann"}), (single, 5), (single, np.int64(5))):
        await of.upsert(ROWS if of is table else [{"k": 5}])
        async with client.transaction() as transaction:
            found = await of.get(key)
            assert found is not None
            assert [found] == (await of.lookup(key)).to_pylist()
            assert found == await transaction.get(of, key)
            assert [found] == (await transaction.get_for_update(of, key)).to_pylist()
            await transaction.delete(of, key)
        assert await of.get(key) is None
        assert (await of.scan().key_range(key, key).to_arrow()).num_rows == 0
        await of.upsert([found])
        assert await of.scan().prefix(key).to_pylist() == [found]
        assert (await of.delete(key)).rows == 1


async def test_what_one_misses_is_named(client: Client, name: str) -> None:
    table = await made(client, name)
    for several in (KEYS, [("ann", 1)], pa.table({"player": ["ann"], "day": [1]})):
        with pytest.raises(InvalidKey, match=r"get takes one key, not a .*: use lookup, which takes several"):
            await table.get(several)
    with pytest.raises(UsageError, match=r'no table option "bucket"; did you mean "buckets"'):
        await client.create_table(f"{name}x", "a int64", primary_key=["a"], bucket=4)
    written = await table.upsert(ROWS)
    for text in (written.log_offsets.to_json(), {str(bucket): at for bucket, at in written.log_offsets.items()}):
        with pytest.raises(UsageError, match=r"LogOffsets\.from_json reads what to_json has written"):
            await table.undo("job-1", text)  # type: ignore[arg-type]


@pytest.mark.parametrize("blocking", [False, True])
async def test_tables_and_transactions_show_themselves_in_notebooks(client: Client, name: str, blocking: bool) -> None:
    evil = "<script>alert('&')</script>"
    schema = pa.schema([("k", pa.int64()), (evil, pa.string())])
    table = await client.create_table(name, schema, primary_key=["k"])
    async with client.transaction(id=f"{name}:{evil}"[-100:]) as transaction:
        await transaction.upsert(table, [{"k": 1, evil: "x"}])
        shown = [each._repr_html_() for each in (table, transaction)]
        if blocking:
            twins = [Blocking(None, each) for each in (table, transaction)]  # type: ignore[arg-type]  # nothing is called
            shown = [str(each._repr_html_()) for each in twins]
    assert "<td>k</td><td>int64</td><td>yes</td><td>no</td>" in shown[0]
    assert "<td>open</td>" in shown[1]
    for each in [*shown, transaction._repr_html_(), await _shown_rows(table)]:
        assert "<script" not in each
        assert "&lt;script&gt;" in each
    assert "CommitResult of 1 row in 1 table" in transaction._repr_html_()


async def _shown_rows(table: Table) -> str:
    return (await table.lookup(1, with_version=True))._repr_html_()
