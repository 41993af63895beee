"""The queries that find which rows a statement changes, and how. They call nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scankv.model.errors import SchemaMismatch, UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlglot import Expr, exp

ACTION: Final = "scankv_action"
"""The column of a merge that has the number of its WHEN clause; null for none."""
_NEW: Final = "scankv_new_"


class ChangedTable(NamedTuple):
    """The table that a statement changes.

    Attributes:
        types: Its columns, with DuckDB's names of their types.
        key: Its key columns.
        defaults: The defaults of columns that have one.
    """

    types: Mapping[str, str]
    key: Sequence[str]
    defaults: Mapping[str, object]

    def column(self, name: str) -> str:
        """Returns the column that a statement names, ignoring case. Raises SchemaMismatch if there is none."""
        found = [each for each in self.types if each == name] or [
            each for each in self.types if each.lower() == name.lower()
        ]
        if len(found) != 1:
            raise SchemaMismatch(f'"{name}" is not a column{did_you_mean(name, self.types)}', column=name)
        return found[0]

    def values(self, names: Sequence[str], expressions: Sequence[Expr]) -> dict[str, Expr]:
        """Returns values by column. Raises UsageError if there are more or fewer than columns."""
        if len(names) != len(expressions):
            raise UsageError(f"{len(expressions)} values are given for {len(names)} columns")
        return {self.column(name): value for name, value in zip(names, expressions, strict=True)}


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """How a statement changes rows.

    Attributes:
        query: Returns the columns of each row to change as they are, and of those that change new values as well.
        actions: What is done with a row: "update", "delete", "insert" or "nothing", by its number in `ACTION`. Without
            such a column, the only one.
        has_action: Whether the query returns that column.
        changed: The columns of which the query returns new values.
    """

    query: str
    actions: tuple[str, ...]
    has_action: bool
    changed: tuple[str, ...]

    @staticmethod
    def new(name: str) -> str:
        """Returns under which name the query returns the new values of a column."""
        return f"{_NEW}{name}"


def target_of(statement: Expr) -> exp.Table:
    """Returns the table that a statement changes. Raises UsageError unless it can be one of the server."""
    from sqlglot import exp

    from aio_client._sql.statement import SCHEMAS_OF_DUCKDB

    found: Any = statement.this
    if isinstance(statement, exp.Drop | exp.TruncateTable):
        tables = statement.args.get("tables") or statement.expressions
        if len(tables) != 1:
            raise UsageError("one table is changed at a time")
        (found,) = tables
    table = found.this if isinstance(found, exp.Schema) else found
    if not isinstance(table, exp.Table) or not table.db or table.catalog or table.db.lower() in SCHEMAS_OF_DUCKDB:
        raise UsageError("only tables of the server can be changed: name one as database.table")
    return table


def plan_delete(statement: Expr, target: ChangedTable) -> ChangePlan:
    """Returns how DELETE changes rows. Raises UsageError for clauses that are not supported."""
    _refuse(statement, "returning", "order", "limit")
    query = _select(statement, [_all_of(statement)], statement.args.get("using") or [])
    query.distinct(copy=False)
    return ChangePlan(query.sql(dialect="duckdb"), ("delete",), has_action=False, changed=())


def plan_update(statement: Expr, target: ChangedTable) -> ChangePlan:
    """Returns how UPDATE changes rows. Raises UsageError, SchemaMismatch."""
    from sqlglot import exp

    _refuse(statement, "returning", "order", "limit")
    values = _assignments(statement.expressions, target)
    source = statement.args.get("from_")
    new = [_value(name, value, target) for name, value in values.items()]
    query = _select(statement, [_all_of(statement), *new], [] if source is None else [source.this])
    if not isinstance(statement.this, exp.Table) or statement.this.args.get("joins"):
        raise UsageError("update takes one table: name others in its FROM clause")
    return ChangePlan(query.sql(dialect="duckdb"), ("update",), has_action=False, changed=tuple(values))


def plan_merge(statement: Expr, target: ChangedTable) -> ChangePlan:
    """Returns how MERGE changes rows. Raises UsageError, SchemaMismatch."""
    from sqlglot import exp

    _refuse(statement, "returning")
    table, source = statement.this, statement.args["using"]
    key = exp.column(exp.to_identifier(target.key[0], quoted=True), table=table.alias_or_name)
    actions: list[str] = []
    chosen = exp.Case()
    cases: dict[str, exp.Case] = {name: exp.Case() for name in target.types}
    for number, when in enumerate(statement.args["whens"].expressions):
        if when.args.get("source"):
            raise UsageError("WHEN NOT MATCHED BY SOURCE is not supported: use delete from ... where not exists (...)")
        is_matched = exp.Is(this=key.copy(), expression=exp.Null())
        condition = exp.Not(this=is_matched) if when.args["matched"] else is_matched
        given = when.args.get("condition")
        action, values = _action(when.args["then"], target)
        chosen.when(condition if given is None else exp.and_(condition, given), exp.convert(number), copy=False)
        actions.append(action)
        for name, value in values.items():
            cases[name].when(
                exp.column(ACTION).eq(number), exp.cast(value, target.types[name], dialect="duckdb"), copy=False
            )
    changed = [name for name, case in cases.items() if case.args.get("ifs")]
    new = []
    for name in changed:
        old = exp.column(exp.to_identifier(name, quoted=True), table=table.alias_or_name)
        new.append(exp.alias_(cases[name].else_(old), ChangePlan.new(name), quoted=True))
    listed = [_all_of(statement), exp.alias_(chosen, ACTION), *new]
    query = exp.select(*listed).from_(source).join(table, on=_on(statement), join_type="left")
    query.set("with_", statement.args.get("with_"))
    return ChangePlan(query.sql(dialect="duckdb"), tuple(actions), has_action=True, changed=tuple(changed))


def _action(then: Expr, target: ChangedTable) -> tuple[str, dict[str, Expr]]:
    """Returns what a WHEN clause does, and the new values."""
    from sqlglot import exp

    if isinstance(then, exp.Update):
        return "update", _assignments(then.expressions or (), target)
    if isinstance(then, exp.Insert):
        columns, values = then.this, then.expression
        if not isinstance(values, exp.Tuple):
            raise UsageError("name the columns and values of an insert: insert (a, b) values (s.a, s.b)")
        names = [each.name for each in columns.expressions] if columns is not None else [*target.types]
        return "insert", defaults_of(target) | target.values(names, values.expressions)
    word = then.name.lower()
    if word not in ("delete", "do nothing"):
        raise UsageError(f"WHEN ... THEN {word.upper()} is not supported")
    return ("delete" if word == "delete" else "nothing"), {}


def defaults_of(target: ChangedTable) -> dict[str, Expr]:
    """Returns the value of each column that an insert does not name."""
    from sqlglot import exp

    return {name: exp.convert(target.defaults.get(name)) for name in target.types}


def _assignments(given: Any, target: ChangedTable) -> dict[str, Expr]:  # noqa: ANN401  # of sqlglot
    from sqlglot import exp

    if not given or not all(isinstance(each, exp.EQ) and isinstance(each.this, exp.Column) for each in given):
        raise UsageError("name the columns and values of an update: set a = 1, b = 2")
    values = target.values([each.this.name for each in given], [each.expression for each in given])
    if len(values) < len(given):
        raise UsageError("a column is set twice: set each once")
    if keys := [name for name in values if name in target.key]:
        raise UsageError(f"{keys[0]} is a key column, which does not change: delete the row, and insert another one")
    return values


def _select(statement: Expr, columns: Sequence[Expr], sources: Sequence[Expr]) -> exp.Select:
    from sqlglot import exp

    query = exp.select(*columns).from_(statement.this)
    for source in sources:
        query.join(source, copy=False)
    if (where := statement.args.get("where")) is not None:
        query.where(where.this, copy=False)
    query.set("with_", statement.args.get("with_"))
    return query


def _value(name: str, value: Expr, target: ChangedTable) -> Expr:
    from sqlglot import exp

    return exp.alias_(exp.cast(value, target.types[name], dialect="duckdb"), ChangePlan.new(name), quoted=True)


def _all_of(statement: Expr) -> Expr:
    """Returns all columns of the table that a statement changes."""
    from sqlglot import exp

    return exp.Column(this=exp.Star(), table=exp.to_identifier(statement.this.alias_or_name, quoted=True))


def _on(statement: Expr) -> Expr:
    from sqlglot import exp

    names = statement.args.get("using_cond")
    if not names:
        condition: Expr = statement.args["on"]
        return condition
    sides = (statement.this.alias_or_name, statement.args["using"].alias_or_name)
    return exp.and_(
        *(
            exp.EQ(
                **dict(
                    zip(("this", "expression"), (exp.column(each.copy(), table=side) for side in sides), strict=True)
                )
            )
            for each in names
        )
    )


def _refuse(statement: Expr, *clauses: str) -> None:
    for clause in clauses:
        if statement.args.get(clause):
            raise UsageError(f"{clause.upper()} is not supported in a statement that writes: leave it out")
