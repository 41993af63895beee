"""Which statement is a text, and which live tables does it read?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from aio_client._input.optional import import_optional
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from sqlglot import Expr

SCHEMAS_OF_DUCKDB: Final = ("information_schema", "main", "pg_catalog", "temp")
_CALLS: Final = {
    "Insert": "table.upsert(rows)",
    "Update": "table.upsert_columns(rows)",
    "Delete": "table.delete_where(where)",
    "Merge": "client.transaction()",
    "Create": "client.create_table(name, schema, primary_key=...)",
    "Drop": "client.drop_table(name)",
    "Alter": "client.alter_table(name, ...)",
    "TruncateTable": "table.truncate()",
}
"""What does what a statement would do."""


class Statement(NamedTuple):
    """One statement.

    Attributes:
        text: The statement as it was written.
        tables: The live tables that it names as `database.table`, each once for each time it is named.
        tree: The statement as sqlglot parses it.
        writes: Whether it changes rows or tables.
    """

    text: str
    tables: tuple[str, ...]
    tree: Expr
    writes: bool = False


def parse_statement(text: str, *, can_write: bool = False) -> Statement:
    """Parses one statement in the dialect of DuckDB.

    Args:
        text: The statement.
        can_write: Whether it may be one that changes rows or tables.

    Raises:
        UsageError: It cannot be parsed, is several statements, or does what it may not do.
    """
    import sqlglot
    from sqlglot import exp

    if not isinstance(text, str):
        raise UsageError(f"query must be text, not a {type(text).__name__}", option="query")
    _check_syntax(text)
    try:
        parsed = [each for each in sqlglot.parse(text, dialect="duckdb") if each is not None]
    except sqlglot.errors.SqlglotError as error:
        raise UsageError(f"this SQL cannot be read: {str(error).partition(chr(10))[0]}") from error
    except RecursionError:
        raise UsageError("this SQL is nested too deeply: divide it, for example by WITH") from None
    if len(parsed) != 1:
        raise UsageError(f"one statement is run at a time, not {len(parsed)}")
    (statement,) = parsed
    if can_write and type(statement).__name__ in _CALLS:
        return Statement(text, (), statement, writes=True)
    if not isinstance(statement, exp.Query | exp.Values | exp.Describe | exp.Summarize | exp.Pivot):
        raise UsageError(_refusal(statement))
    return Statement(text, tuple(_live_tables(statement)), statement)


def _check_syntax(text: str) -> None:
    """Raises UsageError if DuckDB cannot parse the text, with the place in it."""
    duckdb = import_optional("duckdb")
    try:
        duckdb.extract_statements(text)
    except duckdb.Error as error:
        raise UsageError(f"DuckDB: {error}") from error


def _live_tables(statement: Expr) -> list[str]:
    from sqlglot import exp

    return [
        f"{table.db}.{table.name}"
        for table in statement.find_all(exp.Table)
        if table.db and not table.catalog and table.db.lower() not in SCHEMAS_OF_DUCKDB
    ]


def _refusal(statement: Expr) -> str:
    kind = type(statement).__name__
    instead = _CALLS.get(kind)
    return "SQL only reads here: " + (f"for this, use {instead}" if instead else "begin the statement with select")
