"""A random history of a table whose columns change, with a model of its rows by column id."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from aio_client import ConnectionFailed
from tests.model.evolution_columns import (
    COMPLETE_ROWS,
    GROUPED,
    MERGES_NULLS,
    ORDER,
    RETRACTS,
    SCHEMA,
    WITHOUT_DELETES,
    ModelColumn,
    Row,
    change_indexes,
    random_changes,
    random_value,
    widened_value,
)

if TYPE_CHECKING:
    from random import Random

    from aio_client import Client, LogOffsets, Snapshot, Table
    from tests.support.server_process import ServerProcess

KEYS: Final = 40
BUCKETS: Final = 2


@dataclass
class EvolutionHistory:
    """Writes to a table and changes its columns, at random.

    Attributes:
        versions: The columns of each schema version, by its id.
        rows: What the table must have, by key.
        handles: The table as it was opened under several schema versions.
        snapshots: Pinned snapshots with what they must have, by name.
        moments: Log offsets with the rows at that time, converted to the present columns.
        indexes: The ids of the columns that have an index each.
        tracks_all: Whether no write is untracked, so that the changelog has every change.
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
    snapshots: dict[str, tuple[Snapshot, list[dict[str, Any]]]] = field(default_factory=dict)
    moments: list[tuple[LogOffsets, dict[int, Row]]] = field(default_factory=list)
    indexes: set[int] = field(default_factory=set)
    tracks_all: bool = True
    changes: int = 0
    kills: int = 0
    last_id: int = len(SCHEMA)

    def __post_init__(self) -> None:
        self.versions[1] = [ModelColumn(number, each.name, each.type) for number, each in enumerate(SCHEMA, 1)]
        self.handles.append(self.table)
        self.indexes = {2, 3} if self.engine == "indexed" else set()
        self.tracks_all = self.random.random() < 0.5

    @property
    def columns(self) -> list[ModelColumn]:
        """The present columns."""
        return self.versions[max(self.versions)]

    def expected(self, rows: dict[int, Row] | None = None) -> list[dict[str, Any]]:
        """Returns the rows, or others, by key, with the present names."""
        rows = self.rows if rows is None else rows
        return [{each.name: row.get(each.id) for each in self.columns} for _, row in sorted(rows.items())]

    async def step(self) -> None:
        """Does something at random."""
        steps = {
            self._change: 7,
            self._write: 8,
            self._write_partly: 3,
            self._write_kinds: 2,
            self._delete: 3,
            self._write_meanwhile: 2,
            self._commit: 2,
            self._undo: 2,
            self._pin: 1,
            self._reopen: 1,
        }
        await self.random.choices(list(steps), list(steps.values()))[0]()
        if self.random.random() < 0.2:
            self.moments.append((await self.table.log_offsets(), self._copy()))
            del self.moments[:-5]
        if self.random.random() < 0.05:
            await self._kill()

    def _copy(self) -> dict[int, Row]:
        return {key: dict(row) for key, row in self.rows.items()}

    async def _kill(self) -> None:
        await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.server.restart)
        await self.client.wait_ready()
        self.kills += 1

    def _columns_of(self, handle: Table) -> list[ModelColumn]:
        return self.versions[handle._handle.shape.description.schema_id]

    def _rows_for(self, columns: list[ModelColumn], count: int) -> list[Row]:
        keys = self.random.sample(range(KEYS), count)
        rows = [{each.id: random_value(self.random, each.type) for each in columns} | {1: key} for key in keys]
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
        track_changes = self.tracks_all or self.random.random() < 0.6
        await handle.upsert(self._data(given, columns), track_changes=track_changes)
        present = {each.id: each for each in columns}
        self._merge([row | {id_: present[id_].default for id_ in left_out} for row in given], set(present))

    async def _write_partly(self) -> None:
        if self.engine in COMPLETE_ROWS:
            return
        handle = self.random.choice(self.handles)
        columns = self._columns_of(handle)
        needed = {1, 2, *ORDER.get(self.engine, ())}
        chosen = [each for each in columns if each.id in needed or self.random.random() < 0.4]
        rows = self._rows_for(chosen, self.random.choice([1, 5]))
        await handle.upsert(self._data(rows, chosen), columns=[each.name for each in chosen])
        self._merge(rows, {each.id for each in chosen}, partly=True)

    async def _write_meanwhile(self) -> None:
        """Changes columns while rows are written, which are the same whether they come before or after the change."""
        if self.engine in MERGES_NULLS:
            return  # A new row has the default of an added column only if it comes before.
        handle, columns = self.table, self._columns_of(self.table)
        rows = self._rows_for(columns, 12)
        self._merge(rows, {each.id for each in columns})
        async with asyncio.TaskGroup() as group:
            for start in range(0, 12, 3):
                group.create_task(handle.upsert(self._data(rows[start : start + 3], columns)))
            group.create_task(self._change())

    async def _write_kinds(self) -> None:
        """Writes rows with change types, as a job does that passes the changes of another table on."""
        if self.engine in COMPLETE_ROWS:
            return
        handle = self.random.choice(self.handles)
        columns = self._columns_of(handle)
        rows = self._rows_for(columns, 6)
        kinds = [self.random.choice(["+I", "-U", "+U", "-D"]) for _ in rows]
        data = pa.Table.from_pylist(
            [{each.name: row[each.id] for each in columns} for row in rows],
            pa.schema([(each.name, each.type) for each in columns]),
        )
        await handle.upsert(data.append_column("_change_type", pa.array(kinds)))
        given = {each.id for each in columns}
        for row, kind in zip(rows, kinds, strict=True):
            if kind in ("+I", "+U"):
                self._merge([row], given)
            elif self.engine in RETRACTS:
                self._retract(row)
            elif kind == "-D" and (row[1] not in self.rows or self._is_newer(row, self.rows[row[1]])):
                self.rows.pop(row[1], None)

    def _retract(self, sent: Row) -> None:
        present = {each.id for each in self.columns}
        row = {id_: value for id_, value in sent.items() if id_ in present}
        old = self.rows.get(row[1])
        if self.engine == "aggregate":
            old = self.rows.setdefault(row[1], {1: row[1]} | dict.fromkeys(present - {1}))
            old[2] = (old[2] or 0) - row[2]
            old |= {id_: None for id_, value in row.items() if id_ > 2 and value is not None}
        elif old is not None and self._is_newer(row, old, (2,)):
            old |= {2: row[2]} | dict.fromkeys(GROUPED)

    def _is_newer(self, row: Row, old: Row, order: tuple[int, ...] | None = None) -> bool:
        """Whether a row is not older than the row that it may replace. Null is oldest."""
        order = ORDER.get(self.engine, ()) if order is None else order
        places = [[(each[id_] is not None, each[id_] or 0) for id_ in order] for each in (row, old)]
        return places[0] >= places[1]

    def _merge(self, rows: list[Row], given: set[int], *, partly: bool = False) -> None:
        """Merges rows that a client has sent with the columns `given`, as the table must merge them."""
        types = {each.id: each.type for each in self.columns}
        for sent in rows:
            row = {id_: widened_value(value, types[id_]) for id_, value in sent.items() if id_ in types}
            if not partly and self.engine not in MERGES_NULLS:
                row |= {each.id: each.default for each in self.columns if each.id not in given}
            key = row[1]
            old = self.rows.get(key)
            if old is None:
                self.rows[key] = {id_: row.get(id_) for id_ in types}
            elif self.engine == "first_row":
                continue
            elif not self._is_newer(row, old):
                continue
            elif self.engine in MERGES_NULLS:
                if self.engine == "aggregate":
                    row[2] += old[2] or 0
                group = (
                    {id_: row[id_] for id_ in (2, *GROUPED) if id_ in row} if self.engine == "sequence_groups" else {}
                )
                merged = {id_: value for id_, value in row.items() if value is not None and id_ not in group}
                self.rows[key] = old | merged | (group if self._is_newer(row, old, (2,)) else {})
            else:
                self.rows[key] = old | row

    async def _delete(self) -> None:
        if self.engine in WITHOUT_DELETES:
            return
        handle, keys = self.random.choice(self.handles), self.random.sample(range(KEYS), 3)
        free = [each for each in self._columns_of(handle) if each.id not in {1, 2, *ORDER.get(self.engine, ())}]
        if free and self.random.random() < 0.4:
            some = self.random.sample(free, self.random.randint(1, len(free)))
            await handle.delete(keys, [each.name for each in some])
            present = {each.id for each in some} & {each.id for each in self.columns}
            for key in self.rows.keys() & set(keys):
                self.rows[key] |= dict.fromkeys(present)
                if present and all(value is None for id_, value in self.rows[key].items() if id_ != 1):
                    del self.rows[key]
            return
        await handle.delete(keys)
        for key in keys:
            self.rows.pop(key, None)

    async def _commit(self) -> None:
        """Stages rows, changes columns, and commits."""
        handle = self.random.choice(self.handles)
        columns = self._columns_of(handle)
        rows = self._rows_for(columns, 3)
        gone = [] if self.engine in WITHOUT_DELETES else self.random.sample(range(KEYS), 2)
        async with self.client.transaction() as transaction:
            await transaction.upsert(handle, self._data(rows, columns))
            if gone:
                await transaction.delete(handle, gone)
            if self.random.random() < 0.7:
                await self._change(may_kill=False)
        self._merge(rows, {each.id for each in columns})
        for key in gone:
            self.rows.pop(key, None)

    async def _undo(self) -> None:
        """Writes as a job that crashes, perhaps changes columns, and undoes the job's writes."""
        if self.engine == "upsert_changelog":
            return
        before, checkpoint = self._copy(), await self.table.log_offsets()
        handle = self.random.choice(self.handles)
        columns = self._columns_of(handle)
        needed = {1, 2, *ORDER.get(self.engine, ())}
        if self.engine not in COMPLETE_ROWS and self.random.random() < 0.5:
            chosen = [each for each in columns if each.id in needed or self.random.random() < 0.4]
        else:
            chosen = columns
        names = None if chosen is columns else [each.name for each in chosen]
        rows, known = self._rows_for(chosen, 4), {each.id for each in self.columns}
        async with handle.writer(id="job") as writer:
            await writer.upsert(self._data(rows, chosen), names)
        self.rows = before
        if self.random.random() < 0.6:
            await self._change()
        report = await self.table.undo("job", checkpoint)
        assert report.conflicts == 0
        added = {each.id: each.initial for each in self.columns if each.id not in known and each.initial is not None}
        if names and added:
            # The job has not written these columns, so rows that it inserted stay with the default.
            for row in rows:
                self.rows.setdefault(row[1], {each.id: None for each in self.columns} | added | {1: row[1]})

    async def _pin(self) -> None:
        name = f"snapshot-{len(self.snapshots)}"
        self.snapshots[name] = await self.table.snapshot(ttl=600, name=name), self.expected()

    async def _reopen(self) -> None:
        self.handles.append(await self.client.table(self.table.name))
        del self.handles[:-4]

    async def _change(self, *, may_kill: bool = True) -> None:
        """Changes the columns at random: all of it or nothing, even if the server is killed in the meantime."""
        arguments, columns = random_changes(self.random, self.engine, self.columns, self.indexes, self.last_id)
        if not arguments:
            return
        indexes = self.indexes
        if self.engine == "indexed":
            indexes = change_indexes(self.random, arguments, self.columns, columns, indexes)
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
        if self.table._handle.shape.description.schema_id == before:
            self._check_columns(self.columns, self.indexes)
            return
        self._check_columns(columns, indexes)
        self.indexes = indexes
        self.last_id = max([self.last_id, *(each.id for each in columns)])
        old = {each.id: each for each in self.columns}
        for rows in (self.rows, *(rows for _, rows in self.moments)):
            for row in rows.values():
                for each in columns:
                    row[each.id] = widened_value(row[each.id] if each.id in old else each.initial, each.type)
                for id_ in old.keys() - {each.id for each in columns}:
                    del row[id_]
        self.versions[before + 1] = columns
        self.changes += 1
        self.handles.append(self.table)
        del self.handles[:-4]

    def _check_columns(self, columns: list[ModelColumn], indexes: set[int]) -> None:
        table = self.table
        assert [(each.name, each.type) for each in table.schema] == [(each.name, each.type) for each in columns]
        assert table.column_comments == {each.name: each.comment for each in columns if each.comment}
        assert {index for (index,) in table.indexes} == {each.name for each in columns if each.id in indexes}

    async def insert(self) -> None:
        """Writes a row with a new key, so that streams of changes have the present columns."""
        row = self._rows_for(self.columns, 1)[0] | {1: KEYS}
        await self.table.upsert(self._data([row], self.columns))
        self._merge([row], {each.id for each in self.columns})
