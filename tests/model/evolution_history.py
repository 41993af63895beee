"""A random history of a table whose columns change, with a model of its rows by column id."""

from __future__ import annotations

import asyncio
import datetime as dt
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from aio_client import ConnectionFailed, StartFrom, StopAt, agg, col

if TYPE_CHECKING:
    from random import Random

    from aio_client import Client, Snapshot, Table
    from tests.support.server_process import ServerProcess

KEYS: Final = 40
BUCKETS: Final = 2
SCHEMA: Final = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        ("v", pa.int32()),
        ("a", pa.string()),
        ("b", pa.int16()),
        ("c", pa.float32()),
        ("d", pa.date32()),
        ("e", pa.decimal128(6, 2)),
    ]
)
_NAMES: Final = "abcdefghij"
_WIDER: Final = {
    pa.int8(): pa.int16(),
    pa.int16(): pa.int32(),
    pa.int32(): pa.int64(),
    pa.uint8(): pa.int16(),
    pa.float32(): pa.float64(),
    pa.decimal128(6, 2): pa.decimal128(12, 2),
    pa.date32(): pa.timestamp("us"),
}
_ADDED: Final = (pa.int8(), pa.uint8(), pa.float32(), pa.string(), pa.date32(), pa.decimal128(6, 2), pa.int32())

ENGINES: Final[dict[str, dict[str, Any]]] = {
    "last_row": {},
    "upsert_changelog": {"changelog": "upsert"},
    "based": {"columnar_base": "eager"},
    "indexed": {"indexes": ["a", "v"]},
    "sequence_column": {"sequence_column": "v"},
    "first_row": {"merge_engine": "first_row"},
    "versioned": {"merge_engine": "versioned", "version_column": "v"},
    "aggregate": {"merge_engine": "aggregate", "aggregates": {"v": agg.sum()}, "delete_behavior": "allow"},
    "partial_update": {"merge_engine": "partial_update", "delete_behavior": "allow"},
}
"""The options of tables of every merge engine."""

_MERGES_NULLS: Final = ("aggregate", "partial_update")
_WITHOUT_DELETES: Final = ("first_row", "versioned", "sequence_column")

Row = dict[int, Any]


@dataclass(frozen=True)
class ModelColumn:
    """A column of the model. `initial` and `default` are its defaults."""

    id: int
    name: str
    type: pa.DataType
    initial: Any = None
    default: Any = None


def widened_value(value: Any, type_: pa.DataType) -> Any:
    """Returns a value as a wider type has it in Python."""
    if value is not None and pa.types.is_timestamp(type_) and type(value) is dt.date:
        return dt.datetime.combine(value, dt.time())
    return value


@dataclass
class EvolutionHistory:
    """Writes to a table and changes its columns, at random.

    Attributes:
        versions: The columns of each schema version, by its id.
        rows: What the table must have, by key.
        handles: The table as it was opened under several schema versions.
        snapshots: Pinned snapshots with what they must have.
        changes: How often the columns have changed.
        kills: How often the server was killed.
    """

    client: Client
    server: ServerProcess
    engine: str
    random: Random
    table: Table
    versions: dict[int, list[ModelColumn]] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)
    handles: list[Table] = field(default_factory=list)
    snapshots: list[tuple[Snapshot, list[dict[str, Any]]]] = field(default_factory=list)
    changes: int = 0
    kills: int = 0
    last_id: int = len(SCHEMA)

    def __post_init__(self) -> None:
        self.versions[1] = [ModelColumn(number, each.name, each.type) for number, each in enumerate(SCHEMA, 1)]
        self.handles.append(self.table)

    @property
    def columns(self) -> list[ModelColumn]:
        """The present columns."""
        return self.versions[max(self.versions)]

    def expected(self) -> list[dict[str, Any]]:
        """Returns the rows by key, with the present names."""
        return [{each.name: row.get(each.id) for each in self.columns} for _, row in sorted(self.rows.items())]

    async def step(self) -> None:
        """Does something at random."""
        steps = [self._change, self._write, self._write_partly, self._delete, self._commit, self._pin, self._reopen]
        await self.random.choices(steps, [6, 8, 3, 3, 2, 1, 1])[0]()
        if self.random.random() < 0.05:
            await self._kill()

    async def _kill(self) -> None:
        await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.server.restart)
        await self.client.wait_ready()
        self.kills += 1

    def _value(self, type_: pa.DataType) -> Any:
        random = self.random
        if random.random() < 0.2:
            return None
        if pa.types.is_integer(type_):
            return random.randrange(100)
        if pa.types.is_floating(type_):
            return random.randrange(100) / 4
        if pa.types.is_decimal(type_):
            return Decimal(random.randrange(1000)) / 100
        if pa.types.is_string(type_):
            return random.choice("xyz") * random.randrange(3)
        day = dt.date(2000, 1, 1) + dt.timedelta(random.randrange(1000))
        return day if pa.types.is_date32(type_) else dt.datetime.combine(day, dt.time())

    def _columns_of(self, handle: Table) -> list[ModelColumn]:
        return self.versions[handle._handle.shape.description.schema_id]

    def _rows_for(self, columns: list[ModelColumn], count: int) -> list[Row]:
        keys = self.random.sample(range(KEYS), count)
        rows = [{each.id: self._value(each.type) for each in columns} | {1: key} for key in keys]
        for row in rows:
            row[2] = self.random.randrange(100)  # decides which row is newer
        return rows

    def _data(self, rows: list[Row], columns: list[ModelColumn]) -> Any:
        data = [{each.name: row[each.id] for each in columns if each.id in row} for row in rows]
        if len(rows) < 4 and self.random.random() < 0.5:
            return data
        schema = pa.schema([(each.name, each.type) for each in columns if each.id in rows[0]])
        return pa.Table.from_pylist(data, schema)

    async def _write(self) -> None:
        handle = self.random.choice(self.handles)
        columns = self._columns_of(handle)
        rows = self._rows_for(columns, self.random.choice([1, 2, 10]))
        left_out = {each.id for each in columns if each.default is not None and self.random.random() < 0.3}
        given = [{id_: value for id_, value in row.items() if id_ not in left_out} for row in rows]
        await handle.upsert(self._data(given, columns))
        present = {each.id: each for each in columns}
        self._merge([row | {id_: present[id_].default for id_ in left_out} for row in given], set(present))

    async def _write_partly(self) -> None:
        if self.engine in ("first_row", "versioned"):
            return
        handle = self.random.choice(self.handles)
        columns = self._columns_of(handle)
        chosen = [each for each in columns if each.id <= 2 or self.random.random() < 0.4]
        rows = self._rows_for(chosen, self.random.choice([1, 5]))
        await handle.upsert(self._data(rows, chosen), columns=[each.name for each in chosen])
        self._merge(rows, {each.id for each in chosen}, partly=True)

    def _merge(self, rows: list[Row], given: set[int], *, partly: bool = False) -> None:
        """Merges rows that a client has sent with the columns `given`, as the table must merge them."""
        types = {each.id: each.type for each in self.columns}
        for sent in rows:
            row = {id_: widened_value(value, types[id_]) for id_, value in sent.items() if id_ in types}
            if not partly and self.engine not in _MERGES_NULLS:
                row |= {each.id: each.default for each in self.columns if each.id not in given}
            key = row[1]
            old = self.rows.get(key)
            if old is None:
                self.rows[key] = {id_: row.get(id_) for id_ in types}
            elif self.engine == "first_row":
                continue
            elif self.engine in ("versioned", "sequence_column") and row[2] < old[2]:
                continue
            elif self.engine in _MERGES_NULLS:
                if self.engine == "aggregate":
                    row[2] += old[2]
                self.rows[key] = old | {id_: value for id_, value in row.items() if value is not None}
            else:
                self.rows[key] = old | row

    async def _delete(self) -> None:
        if self.engine in _WITHOUT_DELETES:
            return
        keys = self.random.sample(range(KEYS), 3)
        await self.random.choice(self.handles).delete(keys)
        for key in keys:
            self.rows.pop(key, None)

    async def _commit(self) -> None:
        """Stages rows, changes columns, and commits."""
        handle = self.random.choice(self.handles)
        columns = self._columns_of(handle)
        rows = self._rows_for(columns, 3)
        gone = [] if self.engine in _WITHOUT_DELETES else self.random.sample(range(KEYS), 2)
        async with self.client.transaction() as transaction:
            await transaction.upsert(handle, self._data(rows, columns))
            if gone:
                await transaction.delete(handle, gone)
            if self.random.random() < 0.7:
                await self._change(may_kill=False)
        self._merge(rows, {each.id for each in columns})
        for key in gone:
            self.rows.pop(key, None)

    async def _pin(self) -> None:
        snapshot = await self.table.snapshot(ttl=600)
        self.snapshots.append((snapshot, self.expected()))

    async def _reopen(self) -> None:
        self.handles.append(await self.client.table(self.table.name))
        del self.handles[:-4]

    async def _change(self, *, may_kill: bool = True) -> None:
        """Changes the columns at random: all of it or nothing, even if the server is killed meanwhile."""
        arguments, columns = self._changes()
        if not arguments:
            return
        before = max(self.versions)
        altering = asyncio.ensure_future(self.client.alter_table(self.table.name, **arguments))
        if may_kill and self.random.random() < 0.15:
            for _ in range(self.random.randrange(4)):
                await asyncio.sleep(0)
            await self._kill()
        try:
            self.table = await altering
        except ConnectionFailed:
            self.table = await self.client.table(self.table.name)
        names = [(each.name, each.type) for each in columns]
        found = [(each.name, each.type) for each in self.table.schema]
        if self.table._handle.shape.description.schema_id == before:
            assert found == [(each.name, each.type) for each in self.columns], "a part of a change"
            return
        assert found == names
        self.last_id = max([self.last_id, *(each.id for each in columns)])
        old = {each.id: each for each in self.columns}
        for row in self.rows.values():
            for each in columns:
                row[each.id] = widened_value(row[each.id] if each.id in old else each.initial, each.type)
            for id_ in old.keys() - {each.id for each in columns}:
                del row[id_]
        self.versions[before + 1] = columns
        self.changes += 1
        self.handles.append(self.table)
        del self.handles[:-4]

    def _changes(self) -> tuple[dict[str, Any], list[ModelColumn]]:
        """Returns arguments of `alter_table`, and the columns after it."""
        random, columns = self.random, list(self.columns)
        fixed = {1, 2} | ({3} if self.engine == "indexed" else set())
        free = [each for each in columns if each.id not in fixed]
        arguments: dict[str, Any] = {}
        dropped = {each.id for each in free if random.random() < 0.12}
        if dropped:
            arguments["drop_columns"] = [each.name for each in columns if each.id in dropped]
            columns = [each for each in columns if each.id not in dropped]
        renamed = [each for each in columns if each.id > 1 and random.random() < 0.25]
        names = [name for name in _NAMES if name not in {each.name for each in columns} - {e.name for e in renamed}]
        new_names = dict(zip([each.id for each in renamed], random.sample(names, len(renamed)), strict=True))
        if renamed:
            arguments["rename_columns"] = {each.name: new_names[each.id] for each in renamed}
        keeps_type = {1} | ({2, 3} if self.engine in ("indexed", "aggregate") else set())
        types = {
            each.id: _WIDER[each.type]
            for each in columns
            if each.id not in keeps_type and each.type in _WIDER and random.random() < 0.15
        }
        if types:
            arguments["column_types"] = {each.name: types[each.id] for each in columns if each.id in types}
        columns = [
            replace(
                each,
                name=new_names.get(each.id, each.name),
                type=types.get(each.id, each.type),
                initial=widened_value(each.initial, types.get(each.id, each.type)),
                default=widened_value(each.default, types.get(each.id, each.type)),
            )
            for each in columns
        ]
        defaults: dict[str, Any] = {}
        merges = self.engine in _MERGES_NULLS
        unused = [name for name in _NAMES if name not in {each.name for each in columns}]
        if unused and random.random() < 0.4:
            type_, name = random.choice(_ADDED), random.choice(unused)
            default = self._value(type_) if random.random() < 0.6 else None
            if default is not None:
                defaults[name] = default
            columns.append(ModelColumn(self.last_id + 1, name, type_, default, None if merges else default))
            arguments["add_columns"] = pa.schema([(name, type_)])
        if not merges and random.random() < 0.3:
            place = random.randrange(1, len(columns))
            each = columns[place]
            if each.name not in defaults and each.id > 2:
                default = self._value(each.type)
                defaults[each.name] = default
                columns[place] = replace(each, default=default)
                if each.id > self.last_id:
                    columns[place] = replace(columns[place], initial=default)
        if defaults:
            arguments["column_defaults"] = defaults
        if random.random() < 0.2:
            random.shuffle(columns)
            arguments["column_order"] = [each.name for each in columns]
        return arguments, columns

    async def insert(self) -> None:
        """Writes a row with a new key, so that streams of changes have the present columns."""
        row = self._rows_for(self.columns, 1)[0] | {1: KEYS}
        await self.table.upsert(self._data([row], self.columns))
        self._merge([row], {each.id for each in self.columns})

    async def check(self) -> None:
        """Compares everything that reads the table with the model."""
        table, expected = await self.client.table(self.table.name), self.expected()
        rows = (await table.scan().to_arrow()).sort_by("k").to_pylist()
        assert rows == expected
        for key in self.random.sample(range(KEYS), 4):
            found = [row for row in expected if row["k"] == key]
            assert await table.get(key) == (found[0] if found else None)
        keys = self.random.sample(range(KEYS), 10)
        looked_up = await table.lookup(keys, missing="omit")
        wanted = [row for row in expected if row["k"] in keys]
        assert sorted(looked_up.to_pylist(), key=lambda row: row["k"]) == wanted
        chosen = self.random.choice(self.columns)
        value = self.random.choice([row[chosen.name] for row in expected] or [None])
        where = col(chosen.name).is_null() if value is None else col(chosen.name) == value
        matching = [row for row in expected if row[chosen.name] == value]
        assert await table.count(where=where) == len(matching)
        projected = (
            (await table.scan([*dict.fromkeys(["k", chosen.name])], where=where).to_arrow()).sort_by("k").to_pylist()
        )
        assert projected == [{"k": row["k"], chosen.name: row[chosen.name]} for row in matching]
        top = await table.top_n(5, next(each.name for each in self.columns if each.id == 2))
        assert len(top) == min(5, len(expected))
        for start in (StartFrom.EARLIEST, StartFrom.FULL):
            assert await self._replay(table, start) == expected, start
        for snapshot, then in self.snapshots:
            assert (await table.scan().at(snapshot).to_arrow()).sort_by("k").to_pylist() == then

    async def _replay(self, table: Table, start: StartFrom) -> list[dict[str, Any]]:
        """Returns what the changes from `start` on add up to."""
        rows: dict[int, dict[str, Any]] = {}
        changes = await table.changes(start, StopAt.LATEST).to_arrow()
        names = [each.name for each in self.columns]
        for change in changes.to_pylist():
            if change["_change_type"] == "-D":
                rows.pop(change["k"], None)
            elif change["_change_type"] != "-U":
                rows[change["k"]] = {name: change[name] for name in names}
        return [row for _, row in sorted(rows.items())]
