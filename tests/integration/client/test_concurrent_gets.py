"""Concurrent gets, which share calls, equal single ones in rows, errors and cancellation, while the table changes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pytest

from aio_client import ConnectionFailed, DeadlineExceeded, Unavailable, UsageError, connect
from aio_client.testing import Fault, FaultProxy
from scankv.model.errors import RequestTooLarge, ScanKvError, TableNotFound
from scankv.model.limits import MAX_REQUEST_BYTES
from tests.support.examples import seeds
from tests.support.noted import noted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aio_client import Client, Table
    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.asyncio

Row: TypeAlias = dict[str, Any]
Outcome: TypeAlias = Row | tuple[type[ScanKvError], str] | None
Call: TypeAlias = "Callable[..., Awaitable[Row | None]]"
MOST_TURNS: Final = 40
"""As many turns of the event loop as a call takes, and some more."""

PAIR_SCHEMA: Final = pa.schema([("name", pa.string()), ("n", pa.int64()), ("value", pa.binary())])
BAD_KEYS: Final[Sequence[object]] = (
    None,
    5,
    "a",
    ("a",),
    ("a", None),
    (None, 1),
    ("a", 1.5),
    ("a", 1 << 63),
    ("a", True),
    (b"a", 1),
    ("a", 1, 2),
    ("\ud800", 1),
    ("x" * 20_000, 1),
    {"name": "a"},
    {"name": "a", "n": 1, "value": b""},
    {"name": "a", "m": 1},
    [("a", 1), ("b", 2)],
    object(),
)


async def outcome_of(call: Call, *arguments: Any) -> Outcome:
    """Returns the row, or type and message of the error."""
    try:
        return await call(*arguments)
    except ScanKvError as error:
        return type(error), str(error)


async def pass_turns(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def run_and_cancel(call: Call, key: object, after: int | None) -> Outcome | Literal["cancelled"]:
    """Returns the outcome of a call, or "cancelled" if it was cancelled after some turns of the event loop."""
    task = asyncio.create_task(outcome_of(call, key))
    if after is not None:
        await pass_turns(after)
        task.cancel()
    await asyncio.wait([task])
    return "cancelled" if task.cancelled() else task.result()


def random_key(random: Random) -> object:
    """Returns a key with a row, a key without a row, or no key at all, in one of the forms that `get` takes."""
    if random.random() < 0.15:
        return random.choice(BAD_KEYS)
    name, n = f"a{random.randrange(3)}", random.randrange(-5, 60)
    forms: Sequence[object] = (
        (name, n),
        (name, n),
        {"n": n, "name": name},
        (name, np.int32(n)),
        (name, float(n)),
        (pa.scalar(name), n),
    )
    return random.choice(forms)


@pytest.mark.represented_by("1")
@seeds(2)
async def test_concurrent_gets_have_the_outcomes_of_single_ones(
    client: Client, shared_server: ServerProcess, name: str, seed: int
) -> None:
    random = Random(seed)
    table = await client.create_table(name, PAIR_SCHEMA, primary_key=["name", "n"], buckets=random.choice([1, 3, 7]))
    await table.upsert([{"name": f"a{n % 3}", "n": n, "value": bytes([n])} for n in range(50)])
    keys = [random_key(random) for _ in range(random.choice([2, 10, 200, 400]))]
    async with connect(shared_server.url) as other:
        alone = await other.table(name)
        expected = [await outcome_of(alone.get, key) for key in keys]
    cancelled = [random.randrange(MOST_TURNS) if random.random() < 0.2 else None for _ in keys]

    async def get(key: object, after: int | None, start: int) -> Outcome | Literal["cancelled"]:
        await pass_turns(start)
        return await run_and_cancel(table.get, key, after)

    starts = [random.choice([0, 0, random.randrange(MOST_TURNS)]) for _ in keys]
    outcomes = await asyncio.gather(*map(get, keys, cancelled, starts))
    with noted(f"seed {seed}"):
        for key, after, outcome, single in zip(keys, cancelled, outcomes, expected, strict=True):
            assert outcome == single or (after is not None and outcome == "cancelled"), key
        # What was cancelled holds up nothing afterwards.
        assert await outcome_of(table.get, ("a0", 3)) == {"name": "a0", "n": 3, "value": b"\3"}


@pytest.mark.parametrize("turns", range(0, MOST_TURNS, 3))
@pytest.mark.represented_by("0", "39")
async def test_gets_work_after_all_callers_were_cancelled(client: Client, name: str, turns: int) -> None:
    table = await client.create_table(name, pa.schema([("key", pa.int64())]), primary_key=["key"])
    await table.upsert(pa.table({"key": range(300)}))
    tasks = [asyncio.create_task(table.get(key)) for key in range(300)]
    await pass_turns(turns)
    for task in tasks:
        task.cancel()
    # One that asks in the same turn must neither wait for the cancelled nor be cancelled with them.
    assert await table.get(7) == {"key": 7}
    await asyncio.wait(tasks)
    assert all(task.cancelled() or task.result() == {"key": key} for key, task in enumerate(tasks))
    assert await asyncio.gather(*(table.get(key) for key in range(300))) == [{"key": key} for key in range(300)]


@dataclass(frozen=True)
class PossibleRows:
    """The rows of a table by their keys. None: the table does not exist."""

    rows: dict[int, Row] | None

    def outcome(self, key: int) -> Row | type[ScanKvError] | None:
        return TableNotFound if self.rows is None else self.rows.get(key)


class RandomChanges:
    """Changes a table at random, and records which states it may be in.

    Attributes:
        table: The table as the last change left it, or as it was before it was dropped.
        states: All states, oldest first. The last one may not be reached yet.
        reached: The number of the last state that is certainly reached.
    """

    def __init__(self, client: Client, table: Table, random: Random) -> None:
        self.table = table
        self.states = [PossibleRows({})]
        self.reached = 0
        self._client = client
        self._random = random
        self._columns = ["v"]
        self._written = 0

    @property
    def _rows(self) -> dict[int, Row]:
        return self.states[-1].rows or {}

    async def change(self) -> None:
        """Makes one change."""
        (change,) = self._random.choices([self._upsert, self._delete, self._alter, self._recreate], [10, 4, 1, 1])
        await change()

    async def _reach(self, rows: dict[int, Row] | None, change: Awaitable[Any]) -> Any:
        self.states.append(PossibleRows(rows))
        result = await change
        self.reached = len(self.states) - 1
        return result

    async def _upsert(self) -> None:
        keys = self._random.sample(range(KEYS), self._random.choice([1, 1, 5, 20]))
        self._written += 1
        written = {key: {"key": key, **dict.fromkeys(self._columns, self._written)} for key in keys}
        await self._reach({**self._rows, **written}, self.table.upsert(list(written.values())))

    async def _delete(self) -> None:
        keys = self._random.sample(range(KEYS), self._random.choice([1, 5]))
        left = {key: row for key, row in self._rows.items() if key not in keys}
        await self._reach(left, self.table.delete(keys))

    async def _alter(self) -> None:
        column = f"c{len(self.states)}"
        self._columns.append(column)
        rows = {key: {**row, column: None} for key, row in self._rows.items()}
        altered = self._client.alter_table(self.table.name, add_columns=pa.schema([(column, pa.int64())]))
        self.table = await self._reach(rows, altered)

    async def _recreate(self) -> None:
        await self._reach(None, self._client.drop_table(self.table.name))
        # Rows of the same length, so that nothing but a wrong outcome shows if they are decoded with the old columns.
        self._columns = [self._random.choice("vw")]
        self.table = await self._reach({}, self._create(self.table.name, self._random.choice([1, 3])))

    async def _create(self, name: str, buckets: int) -> Table:
        schema = pa.schema([("key", pa.int64()), *((column, pa.int64()) for column in self._columns)])
        return await self._client.create_table(name, schema, primary_key=["key"], buckets=buckets)


KEYS: Final = 30
CHANGES: Final = 40
CALLERS: Final = 20


@pytest.mark.represented_by("1")
@seeds(2)
async def test_a_get_sees_a_state_between_its_call_and_its_end_while_the_table_changes(
    client: Client, shared_server: ServerProcess, name: str, seed: int
) -> None:
    """Each get has the row, no row or the error of a state of the table that it may have seen if it were alone."""
    random = Random(seed)
    first = await client.create_table(name, pa.schema([("key", pa.int64()), ("v", pa.int64())]), primary_key=["key"])
    done = False
    seen = 0
    async with connect(shared_server.url) as other:
        writer = random.choice([client, other])
        changing = RandomChanges(writer, await writer.table(name), Random(seed))

        async def get_until_done(caller: int) -> None:
            nonlocal seen
            chance, table = Random(f"{seed} {caller}"), first
            while not done:
                if chance.random() < 0.05:
                    # A caller that has opened the table lately knows other columns than the others. It may be gone.
                    with suppress(TableNotFound):
                        table = await client.table(name)
                key = chance.randrange(KEYS)
                after = chance.randrange(MOST_TURNS) if chance.random() < 0.1 else None
                reached = changing.reached
                outcome = await run_and_cancel(table.get, key, after)
                possible = [state.outcome(key) for state in changing.states[reached:]]
                if outcome == "cancelled":
                    assert after is not None
                    continue
                seen += 1
                assert (outcome[0] if isinstance(outcome, tuple) else outcome) in possible, (key, outcome, possible)

        with noted(f"seed {seed}"):
            async with asyncio.TaskGroup() as group:
                for caller in range(CALLERS):
                    group.create_task(get_until_done(caller))
                try:
                    for _ in range(CHANGES):
                        await changing.change()
                finally:
                    done = True
    assert seen > CHANGES


@pytest.mark.breadth
async def test_rows_that_do_not_fit_into_one_answer_are_got_concurrently(client: Client, name: str) -> None:
    schema = pa.schema([("key", pa.int64()), ("blob", pa.binary())])
    table = await client.create_table(name, schema, primary_key=["key"], buckets=2)
    rows = [{"key": key, "blob": bytes([key]) * (MAX_REQUEST_BYTES // 4)} for key in range(6)]
    for row in rows:
        await table.upsert([row])
    assert await asyncio.gather(*(table.get(key) for key in range(7))) == [*rows, None]
    with pytest.raises(RequestTooLarge):
        await table.upsert([{"key": 7, "blob": bytes(MAX_REQUEST_BYTES)}])


async def test_a_table_with_other_keys_refuses_concurrent_gets_as_single_lookups(client: Client, name: str) -> None:
    """The table was created again with another key, of which the callers know nothing."""
    before = await client.create_table(name, pa.schema([("key", pa.int64())]), primary_key=["key"], buckets=3)
    await before.upsert([{"key": 1}])
    assert await before.get(1) == {"key": 1}
    await client.drop_table(name)
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    after = await client.create_table(name, schema, primary_key=["a", "b"], bucket_key=["b"], buckets=3)
    await after.upsert([{"a": "1", "b": "1"}])

    async def look_up(key: int) -> Row | None:
        rows: list[Row] = (await before.lookup([key])).to_pylist()
        return rows[0] if rows else None

    outcomes = await asyncio.gather(*(outcome_of(before.get, key) for key in range(20)))
    assert outcomes == [await outcome_of(look_up, key) for key in range(20)]


@pytest.mark.parametrize("callers", [1, 2, 50])
async def test_closing_the_client_ends_concurrent_gets_as_it_ends_single_ones(
    shared_server: ServerProcess, name: str, callers: int
) -> None:
    for turns in range(0, 12, 2):
        async with connect(shared_server.url) as client:
            table = await client.create_table(f"{name}{turns}", pa.schema([("key", pa.int64())]), primary_key=["key"])
            tasks = [asyncio.create_task(outcome_of(table.get, key)) for key in range(callers)]
            await pass_turns(turns)
        await asyncio.wait(tasks)
        # No caller has cancelled these tasks, so none of them is cancelled.
        for outcome in (task.result() for task in tasks):
            assert outcome is None or (isinstance(outcome, tuple) and outcome[0] is UsageError), outcome


@seeds(2)
async def test_under_random_faults_a_get_has_its_row_or_the_error_of_the_connection(
    client: Client, shared_server: ServerProcess, name: str, seed: int
) -> None:
    random = Random(seed)
    table = await client.create_table(name, pa.schema([("key", pa.int64()), ("n", pa.int64())]), primary_key=["key"])
    await table.upsert(pa.table({"key": range(KEYS), "n": [key * key for key in range(KEYS)]}))
    with noted(f"seed {seed}"):
        async with FaultProxy(shared_server.url) as proxy, connect(proxy.address, attempt_timeout=10) as through:
            behind = await through.table(name)

            async def get(key: int) -> bool:
                for _ in range(30):
                    outcome = await outcome_of(behind.get, key)
                    if isinstance(outcome, tuple):
                        assert issubclass(outcome[0], Unavailable | ConnectionFailed | DeadlineExceeded), outcome
                    else:
                        assert outcome == ({"key": key, "n": key * key} if key < KEYS else None)
                return True

            for _ in range(3):
                proxy.on_next(Fault(random.choice(["cut", "reset", "half_close"]), random.randrange(20_000)))
                assert all(await asyncio.gather(*(get(key) for key in range(KEYS + 3))))
            await through.wait_ready()
            assert await behind.get(5) == {"key": 5, "n": 25}


LOOKUP_TABLES: Final[dict[str, tuple[pa.Schema, list[str], dict[str, Any]]]] = {
    "plain": (PAIR_SCHEMA, ["name", "n"], {}),
    "nested": (PAIR_SCHEMA.append(pa.field("tags", pa.list_(pa.string()))), ["name", "n"], {}),
    "decimal": (PAIR_SCHEMA.append(pa.field("price", pa.decimal128(10, 2))), ["name", "n"], {}),
    "required": (PAIR_SCHEMA.append(pa.field("must", pa.int8(), nullable=False)), ["name", "n"], {}),
    "aggregate": (PAIR_SCHEMA, ["name", "n"], {"merge_engine": "aggregate"}),
}


def random_lookup(random: Random) -> tuple[object, dict[str, Any]]:
    """Returns the arguments of a `lookup`: mostly few keys, sometimes many, no key, or one that is refused."""
    if random.random() < 0.1:
        keys = random.choice([[], [random.choice(BAD_KEYS)], [("a0", 1), random.choice(BAD_KEYS)]])
    else:
        count = random.choice([1, 1, 2, 5, 60, 130])
        keys = [(f"a{random.randrange(3)}", random.randrange(-5, 60)) for _ in range(count)]
        if random.random() < 0.2:
            name, n = zip(*keys, strict=True)
            keys = pa.table({"n": n, "name": name})
    return keys, {"missing": random.choice(["omit", "null"]), "with_version": random.random() < 0.4}


async def lookup_outcome(table: Table, keys: object, modes: dict[str, Any]) -> tuple[object, ...]:
    """Returns rows, their columns and the log offsets, or type and message of the error."""
    try:
        found = await table.lookup(keys, **modes)
    except ScanKvError as error:
        return type(error), str(error)
    if isinstance(found, pa.Table):
        return found.schema, found.to_pylist()
    return found.rows.schema, found.rows.to_pylist(), found.log_offsets.to_json()


@pytest.mark.parametrize("kind", LOOKUP_TABLES)
@seeds(2)
@pytest.mark.represented_by("0-plain", "1-aggregate")
async def test_concurrent_lookups_have_the_outcomes_of_single_ones_and_of_many_keys(
    client: Client, shared_server: ServerProcess, name: str, seed: int, kind: str
) -> None:
    random = Random(f"{seed} {kind}")
    schema, key, options = LOOKUP_TABLES[kind]
    table = await client.create_table(name, schema, primary_key=key, buckets=random.choice([1, 3, 7]), **options)
    others: dict[str, Any] = {"tags": ["a", None], "price": 1, "must": 1}
    more = {column: others[column] for column in schema.names if column in others}
    await table.upsert([{"name": f"a{n % 3}", "n": n, "value": bytes([n]), **more} for n in range(50)])
    calls = [random_lookup(random) for _ in range(random.choice([2, 20, 60]))]
    async with connect(shared_server.url) as other:
        alone = await other.table(name)
        expected = [await lookup_outcome(alone, *call) for call in calls]
        # What Arrow data says is the rule. It does not share requests with lists of keys.
        for (keys, modes), single in zip(calls, expected, strict=True):
            if isinstance(keys, list) and keys and isinstance(single[0], pa.Schema):
                names, numbers = zip(*keys, strict=True)
                assert await lookup_outcome(alone, pa.table({"name": names, "n": numbers}), modes) == single

    async def look_up(keys: object, modes: dict[str, Any]) -> tuple[object, ...] | None:
        await pass_turns(random.choice([0, 0, random.randrange(MOST_TURNS)]))
        task = asyncio.create_task(lookup_outcome(table, keys, modes))
        if random.random() < 0.2:
            await pass_turns(random.randrange(MOST_TURNS))
            task.cancel()
        await asyncio.wait([task])
        return None if task.cancelled() else task.result()

    outcomes = await asyncio.gather(*(look_up(*call) for call in calls))
    with noted(f"seed {seed}"):
        for call, outcome, single in zip(calls, outcomes, expected, strict=True):
            assert outcome is None or outcome == single, call
        assert sum(outcome is not None for outcome in outcomes) >= len(outcomes) // 3


@pytest.mark.parametrize("column", [pa.field("more", pa.int64()), pa.field("more", pa.list_(pa.int64()))], ids=str)
async def test_a_table_that_was_opened_before_a_column_was_added_learns_of_it_by_its_first_read(
    client: Client, name: str, column: pa.Field
) -> None:
    schema = pa.schema([("key", pa.int64()), ("n", pa.int64())])
    before = await client.create_table(name, schema, primary_key=["key"])
    await before.upsert([{"key": 1, "n": 2}])
    await client.alter_table(name, add_columns=pa.schema([column]))
    row = {"key": 1, "n": 2, "more": None}
    assert await asyncio.gather(*(before.get(1) for _ in range(50))) == [row] * 50
    assert (await before.lookup([1])).to_pylist() == [row]
    # Rows to write must have all columns of the table's schema, so reads do not change it.
    assert before.schema.names == ["key", "n"]
    await before.upsert(pa.Table.from_pylist([{"key": 2, "n": 3}], schema))


async def test_a_lookup_of_missing_keys_has_the_columns_that_were_added(client: Client, name: str) -> None:
    before = await client.create_table(name, pa.schema([("key", pa.int64())]), primary_key=["key"])
    await client.alter_table(name, add_columns=pa.schema([("more", pa.int64())]))
    assert (await before.lookup([7])).schema.names == ["key", "more"]
    assert (await before.lookup([7], missing="null")).to_pylist() == [{"key": 7, "more": None}]


async def test_a_get_in_flight_decodes_with_its_own_columns_when_a_write_learns_of_another_table(
    client: Client, name: str
) -> None:
    """The rows of both tables have the same length and the same schema id."""
    before = await client.create_table(name, pa.schema([("key", pa.int64()), ("v", pa.int64())]), primary_key=["key"])
    await client.drop_table(name)
    after = await client.create_table(name, pa.schema([("key", pa.int64()), ("w", pa.int64())]), primary_key=["key"])
    await after.upsert([{"key": 1, "w": 5}])
    gets = [asyncio.create_task(before.get(1)) for _ in range(30)]
    written = asyncio.create_task(before.upsert([{"key": 2}]))
    assert await asyncio.gather(*gets) == [{"key": 1, "w": 5}] * 30
    await written
