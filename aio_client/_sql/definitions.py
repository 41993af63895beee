"""Carries out statements about tables: create, drop, and add and rename columns."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from aio_client._sql.change_plan import target_of
from aio_client._sql.engine import SqlRun
from aio_client._sql.result import SqlResult
from scankv.model.errors import TableExists, TableNotFound, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlglot import Expr, exp

    from aio_client._sql.engine import Engine

_CREATE: Final = "for this, use client.create_table(name, schema, primary_key=...)"
_DROP: Final = "SQL drops only tables: use client.drop_table(name)"
_ALTER: Final = "SQL adds and renames columns: for other changes, use client.alter_table(name, ...)"


class DefiningClient(Protocol):
    """The calls of a client that define tables."""

    async def create_table(self, name: str, schema: pa.Schema, *, primary_key: Sequence[str]) -> Any: ...  # noqa: ANN401

    async def drop_table(self, name: str) -> None: ...

    async def alter_table(
        self, name: str, *, add_columns: pa.Schema | None = None, rename_columns: Mapping[str, str] | None = None
    ) -> Any: ...  # noqa: ANN401


async def define(client: DefiningClient, engine: Engine, statement: Expr) -> SqlResult:
    """Runs a statement about a table.

    Args:
        client: Makes the calls.
        engine: Knows the types of DuckDB.
        statement: CREATE, DROP or ALTER.

    Raises:
        UsageError: The statement has something that SQL does not do here; the message names the call to use.
        ScanKvError: As for the call.
    """
    from sqlglot import exp

    table = target_of(statement)
    name = f"{table.db}.{table.name}"
    if isinstance(statement, exp.Create):
        schema, key = await _columns_of(engine, statement)
        with suppress(*([TableExists] if statement.args.get("exists") else [])):
            await client.create_table(name, schema, primary_key=key)
        return SqlResult(rows=0, summary=f"table {name} created")
    if isinstance(statement, exp.Drop):
        if statement.args.get("kind") != "TABLE":
            raise UsageError(_DROP)
        with suppress(*([TableNotFound] if statement.args.get("exists") else [])):
            await client.drop_table(name)
        return SqlResult(rows=0, summary=f"table {name} dropped")
    actions = statement.args.get("actions") or ()
    if all(isinstance(each, exp.ColumnDef) for each in actions):
        await client.alter_table(name, add_columns=await _schema(engine, actions, _ALTER))
    elif all(isinstance(each, exp.RenameColumn) for each in actions):
        await client.alter_table(name, rename_columns={each.this.name: each.args["to"].name for each in actions})
    else:
        raise UsageError(_ALTER)
    return SqlResult(rows=0, summary=f"table {name} altered")


async def _columns_of(engine: Engine, statement: exp.Create) -> tuple[pa.Schema, list[str]]:
    """Returns the columns and the key of a new table."""
    from sqlglot import exp

    given = statement.this
    has_more = any(statement.args.get(name) for name in ("expression", "properties", "replace"))
    if statement.args.get("kind") != "TABLE" or has_more or not isinstance(given, exp.Schema):
        raise UsageError(f"SQL creates tables with named columns: {_CREATE}")
    columns = [each for each in given.expressions if isinstance(each, exp.ColumnDef)]
    others = [each for each in given.expressions if not isinstance(each, exp.ColumnDef)]
    if any(not isinstance(each, exp.PrimaryKey) for each in others):
        raise UsageError(f"the only constraints of a table are primary key and not null: {_CREATE}")
    key = [each.name for constraint in others for each in constraint.expressions]
    key += [each.name for each in columns if _has(each, "PrimaryKeyColumnConstraint")]
    return await _schema(engine, columns, _CREATE), key


async def _schema(engine: Engine, columns: Sequence[Expr], instead: str) -> pa.Schema:
    """Returns columns as Arrow has the types of DuckDB. Raises UsageError for constraints that tables do not have."""
    from sqlglot import exp

    for column in columns:
        kinds = {type(each.kind).__name__ for each in column.args.get("constraints") or ()}
        if column.args.get("exists") or not kinds <= {"NotNullColumnConstraint", "PrimaryKeyColumnConstraint"}:
            raise UsageError(f"a column has a type, primary key and not null only: {instead}")
    nulls = [exp.alias_(exp.cast(exp.Null(), each.args["kind"]), each.name, quoted=True) for each in columns]
    types = (await engine.run(SqlRun(exp.select(*nulls).sql(dialect="duckdb"), None, {}, {}))).schema
    return pa.schema(
        [
            field.with_nullable(not _has(column, "NotNullColumnConstraint"))
            for field, column in zip(types, columns, strict=True)
        ]
    )


def _has(column: Expr, constraint: str) -> bool:
    return any(type(each.kind).__name__ == constraint for each in column.args.get("constraints") or ())
