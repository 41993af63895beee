"""Carries out statements that change rows: each in one transaction that has read the rows that it changes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from aio_client._sql.change_plan import (
    ACTION,
    ChangedTable,
    ChangePlan,
    defaults_of,
    plan_delete,
    plan_merge,
    plan_update,
    target_of,
)
from aio_client._sql.engine import SqlRun
from aio_client._sql.result import SqlResult
from aio_client._sql.shortcuts import find_predicate
from scankv.model.counts import counted
from scankv.model.errors import DeadlockDetected, LockTimeout, TransactionConflict, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sqlglot import Expr, exp

    from aio_client._sql.engine import Engine, Parameters

    # Those of the client, which are in a later layer.
    Table: TypeAlias = Any
    Transaction: TypeAlias = Any

MOST_ROWS: Final = 100_000
"""The most rows that one statement may read to change them. The server bounds the locked keys of all clients."""
_AGAIN: Final = (TransactionConflict, DeadlockDetected, LockTimeout)
_MOST_READS: Final = 10


class RowChanges:
    """Runs one statement that changes rows.

    Args:
        client: Writes the table.
        engine: Computes the new rows.
        read: Runs a query as the statement's own parts.
        parameters: The values of the statement's parameters.
    """

    def __init__(
        self,
        client: Any,  # noqa: ANN401
        engine: Engine,
        read: Callable[[str], Awaitable[pa.Table]],
        parameters: Parameters,
    ) -> None:
        self._client = client
        self._engine = engine
        self._read = read
        self._parameters = parameters

    async def run(self, statement: Expr) -> SqlResult:
        """Runs it, again if other writers have changed the rows in the meantime, for the operation timeout.

        Raises:
            UsageError, ScanKvError: As for `SqlQuery.run`.
        """
        from sqlglot import exp

        named = target_of(statement)
        table = await self._client.table(f"{named.db}.{named.name}")
        if isinstance(statement, exp.Insert):
            work, done = self._insert(statement, table), "inserted"
            return SqlResult(rows=(rows := await work), summary=f"{counted(rows, 'row')} {done}")
        if not table.primary_key:
            raise UsageError(f"{table.name} has no primary key: its rows are only inserted")
        if isinstance(statement, exp.TruncateTable) or (
            isinstance(statement, exp.Delete) and statement.args.get("where") is None and _is_plain(statement)
        ):
            return _deleted(await self._delete_all(table))
        if isinstance(statement, exp.Delete) and _is_plain(statement):
            where = find_predicate(statement, table.schema, table.primary_key, self._parameters)
            if where is not None:
                return _deleted((await table.delete(where=where)).rows)
        target = await self._target(table, named)
        if isinstance(statement, exp.Delete):
            return _deleted(await self._change(table, plan_delete(statement, target)))
        if isinstance(statement, exp.Update):
            rows = await self._change(table, plan_update(statement, target))
            return SqlResult(rows=rows, summary=f"{counted(rows, 'row')} updated")
        if not isinstance(self._parameters, dict | None):
            raise UsageError("parameters of a merge have names: write $name, and give a dictionary")
        rows = await self._change(table, plan_merge(statement, target))
        return SqlResult(rows=rows, summary=f"{counted(rows, 'row')} merged")

    async def _target(self, table: Table, named: exp.Table) -> ChangedTable:
        """Returns what plans need to know of a table."""
        from sqlglot import exp

        bare = exp.table_(named.this.copy(), db=named.args["db"].copy()).sql(dialect="duckdb")
        shown = await self._engine.run(
            SqlRun(f"describe select * from {bare}", None, {table.name: table.schema.empty_table()}, {})
        )
        types = dict(zip(shown["column_name"].to_pylist(), shown["column_type"].to_pylist(), strict=True))
        return ChangedTable(types, table.primary_key, table.column_defaults)

    async def _delete_all(self, table: Table) -> int:
        async with self._client.transaction() as tx:
            rows: int = await tx.delete_all(table)
        return rows

    async def _change(self, table: Table, plan: ChangePlan) -> int:
        return await self._transact(lambda tx: self._stage(tx, table, plan))

    async def _transact(self, stage: Callable[[Transaction], Awaitable[int]]) -> int:
        """Runs a transaction, again while others change the rows that it reads, for the operation timeout."""
        timeout = self._client.config.operation_timeout
        end = time.monotonic() + timeout
        while True:
            try:
                async with self._client.transaction(
                    conflict="abort", lock="keys", lock_timeout=min(60.0, timeout)
                ) as tx:
                    return await stage(tx)
            except _AGAIN:
                if time.monotonic() >= end:
                    raise

    async def _stage(self, tx: Transaction, table: Table, plan: ChangePlan) -> int:
        """Stages the changes of a statement. Returns the number of rows.

        The rows are read again under locks until they are those from which the query has computed the changes.
        """
        for _ in range(_MOST_READS):
            found = await self._read(plan.query)
            found = _rows_of(found, plan, "update", "delete", "insert")
            _check_size(found.num_rows, table)
            inserted = _rows_of(found, plan, "insert")
            old = _rows_of(found, plan, "update", "delete").select(table.schema.names)
            keys = old.select(table.primary_key)
            new_keys = _new_rows(inserted, plan, table).select(table.primary_key)
            _check_distinct(keys, table)
            _check_distinct(new_keys, table)
            locked = await tx.get_for_update(table, keys) if keys.num_rows else None
            added = await tx.get_for_update(table, new_keys) if new_keys.num_rows else None
            if not (added and added.num_rows) and (locked is None or await self._are_same(old, locked)):
                break
        else:
            raise TransactionConflict(f"{table.name}: other writers keep changing the rows: run the statement again")
        deleted = _rows_of(found, plan, "delete").select(table.primary_key)
        written = _new_rows(_rows_of(found, plan, "update", "insert"), plan, table)
        if deleted.num_rows:
            await tx.delete(table, deleted)
        if written.num_rows:
            await tx.upsert(table, written, mode="overwrite")
        return int(deleted.num_rows + written.num_rows)

    async def _are_same(self, old: pa.Table, locked: pa.Table) -> bool:
        """Returns whether two tables have the same rows in any order, as DuckDB compares them: NaN equals itself."""
        if old.num_rows != locked.num_rows:
            return False
        text = "select * from computed except all select * from locked limit 1"
        different = await self._engine.run(SqlRun(text, None, {}, {"computed": old, "locked": locked}))
        return not different.num_rows

    async def _insert(self, statement: exp.Insert, table: Table) -> int:
        """Inserts the rows of a query, or of VALUES. Returns their number."""
        rows = await self._given(statement, table)
        on_conflict = _on_conflict(statement)
        if not table.primary_key:
            async with self._client.transaction() as tx:
                return int(await tx.append(table, rows))
        if on_conflict == "replace":
            async with self._client.transaction() as tx:
                return int(await tx.upsert(table, rows, mode="overwrite"))
        _check_size(rows.num_rows, table, "insert or replace into, or table.upsert(rows)")
        if not rows.num_rows:
            return 0

        async def stage(tx: Transaction) -> int:
            found = await tx.get_for_update(table, rows.select(table.primary_key))
            if on_conflict is None:
                _check_distinct(rows.select(table.primary_key), table)
                if found.num_rows:
                    example = found.select(table.primary_key).slice(0, 1).to_pylist()[0]
                    raise UsageError(
                        f"{table.name} has {counted(found.num_rows, 'row')} with these keys already, such as "
                        f"{example}: use insert or replace into, or insert or ignore into"
                    )
                return int(await tx.upsert(table, rows))
            key = ", ".join(_quoted(name) for name in table.primary_key)
            text = f"select distinct on ({key}) * from given anti join found using ({key})"
            frames = {"given": rows, "found": found.select(table.primary_key)}
            new = await self._engine.run(SqlRun(text, None, {}, frames))
            return int(await tx.upsert(table, new)) if new.num_rows else 0

        return await self._transact(stage)

    async def _given(self, statement: exp.Insert, table: Table) -> pa.Table:
        """Returns the rows to insert, with all columns and the types of the table."""
        target = await self._target(table, target_of(statement))
        query = statement.expression
        if query is None:
            raise UsageError("insert takes values or a query")
        query = query.copy()
        if (with_ := statement.args.get("with_")) is not None:
            query.set("with_", with_.copy())
        given = await self._read(query.sql(dialect="duckdb"))
        columns = [each.name for each in getattr(statement.this, "expressions", ())] or [*target.types]
        names = given.column_names if statement.args.get("by_name") else columns
        if len(names) != given.num_columns:
            raise UsageError(f"{given.num_columns} values are given for {len(names)} columns")
        columns = [target.column(name) for name in names]
        if len({*columns}) < len(columns):
            raise UsageError("a column is named twice: name each once")
        values = {name: value.sql(dialect="duckdb") for name, value in defaults_of(target).items()}
        values |= {name: _quoted(name) for name in columns}
        listed = ", ".join(
            f"cast({values[name]} as {type_}) as {_quoted(name)}" for name, type_ in target.types.items()
        )
        text = f"select {listed} from given"
        return await self._engine.run(SqlRun(text, None, {}, {"given": given.rename_columns(columns)}))


def _is_plain(statement: Expr) -> bool:
    return not any(statement.args.get(name) for name in ("using", "with_", "returning", "order", "limit"))


def _deleted(rows: int) -> SqlResult:
    return SqlResult(rows=rows, summary=f"{counted(rows, 'row')} deleted")


def _numbers(plan: ChangePlan, *kinds: str) -> list[int]:
    return [number for number, action in enumerate(plan.actions) if action in kinds]


def _rows_of(found: pa.Table, plan: ChangePlan, *kinds: str) -> pa.Table:
    """Returns the rows with which one of these things is done."""
    if plan.has_action:
        return found.filter(pc.is_in(found[ACTION], pa.array(_numbers(plan, *kinds), pa.int32())))
    return found if plan.actions[0] in kinds else found.slice(0, 0)


def _new_rows(found: pa.Table, plan: ChangePlan, table: Table) -> pa.Table:
    """Returns the rows as the statement leaves them."""
    names = table.schema.names
    new = [found[plan.new(name)] if name in plan.changed else found[name] for name in names]
    return pa.table(new, names=names)


def _check_size(rows: int, table: Table, instead: str = "") -> None:
    if rows > MOST_ROWS:
        raise UsageError(
            f"the statement would read and change {rows:,} rows of {table.name}: at most {MOST_ROWS:,} can be locked "
            f"in one transaction; use {instead or 'several statements on ranges of the key, or table.upsert(rows)'}"
        )


def _check_distinct(keys: pa.Table, table: Table) -> None:
    if keys.num_rows != keys.group_by(table.primary_key).aggregate([]).num_rows:
        raise UsageError(f"several new rows have one key of {table.name}: make the source return one row for each key")


def _on_conflict(statement: exp.Insert) -> str | None:
    """Returns what an insert does with keys that have a row: "replace", "ignore", or None for an error."""
    if statement.args.get("returning"):
        raise UsageError("RETURNING is not supported in a statement that writes: leave it out")
    conflict = statement.args.get("conflict")
    if conflict is None:
        word = str(statement.args.get("alternative") or "").lower()
        if word not in ("", "ignore", "replace"):
            raise UsageError(f"INSERT OR {word.upper()} is not supported: use insert or ignore, or insert or replace")
        return "ignore" if statement.args.get("ignore") else word or None
    if conflict.args.get("action") is not None and conflict.args["action"].name.upper() == "DO NOTHING":
        return "ignore"
    raise UsageError("ON CONFLICT DO UPDATE is not supported: use merge into, or insert or replace into")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
