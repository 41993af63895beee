"""Queries whose rows the server computes: plain aggregates, counts, and the first rows in the order of a column.

DuckDB runs the rest of the query over the server's answer, so that names, types and order are its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow.types as pat

from scankv.model.errors import SchemaMismatch, UsageError
from scankv.model.expressions import Predicate, parse_where
from scankv.model.expressions.literals import Literal
from scankv.model.expressions.nodes import Comparison, FieldPath, Not, Operator
from scankv.model.limits import MAX_TOP_N

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from sqlglot import Expr, exp

    from aio_client._scan.explanation import ScanExplanation
    from aio_client._scan.scan import Scan
    from aio_client._sql.engine import Parameters

_PLAIN: Final = frozenset(
    {
        *("Select", "From", "Table", "TableAlias", "Identifier", "Column", "Alias", "Star", "Paren", "Literal"),
        *("Boolean", "Null", "Neg", "Add", "Sub", "Mul", "Where", "Group", "Having", "Order", "Ordered", "Limit"),
        *("Offset", "Count", "Sum", "Min", "Max", "And", "Or", "Not", "EQ", "NEQ", "LT", "LTE", "GT", "GTE", "In"),
        *("Between", "Like", "Is", "Placeholder"),
    }
)
"""The nodes of queries that a shortcut may answer."""

_AGGREGATES: Final = {"Count": "count", "Sum": "sum", "Min": "min", "Max": "max"}
# For DuckDB, NaN is greater than all numbers. For the server, a comparison with NaN is false, but for `!=`.
_WITH_NAN: Final = {Operator.GREATER: Operator.LESS_EQUAL, Operator.GREATER_EQUAL: Operator.LESS}


class AnsweringTable(Protocol):
    """The calls of a table that answer queries."""

    def scan(self, columns: Sequence[str] | None = None) -> Scan: ...

    async def explain_top_n(
        self, limit: int, order_by: str, where: Predicate | None, *, columns: Sequence[str], descending: bool
    ) -> ScanExplanation: ...

    async def aggregate(
        self, functions: Mapping[str, Sequence[str]], where: Predicate | None, *, group_by: Sequence[str]
    ) -> pa.Table: ...

    async def top_n(
        self, limit: int, order_by: str, where: Predicate | None, *, columns: Sequence[str], descending: bool
    ) -> pa.Table: ...


@dataclass(frozen=True, slots=True)
class TopRows:
    """The first rows in the order of a column, over which the whole query is run.

    Attributes:
        limit: How many.
        order_by: The column.
        descending: Whether the greatest value comes first.
        columns: The columns that the query uses.
        where: Which rows.
        text: None: the query is run as it is.
    """

    limit: int
    order_by: str
    descending: bool
    columns: tuple[str, ...]
    where: Predicate | None
    text: None = None

    @property
    def description(self) -> str:
        """What the server computes, in words."""
        return f"the first {self.limit:,} by {self.order_by}"

    async def explain(self, table: AnsweringTable) -> ScanExplanation:
        """Has the server say how it would read the rows."""
        return await table.explain_top_n(
            self.limit, self.order_by, self.where, columns=self.columns, descending=self.descending
        )

    async def ask(self, table: AnsweringTable) -> pa.Table:
        """Has the server return the rows."""
        return await table.top_n(
            self.limit, self.order_by, self.where, columns=self.columns, descending=self.descending
        )


@dataclass(frozen=True, slots=True)
class GroupTotals:
    """Aggregates over all rows or by group, over which a rewritten query is run.

    Attributes:
        functions: The functions of each column.
        group_by: The columns of the groups.
        where: Which rows.
        text: The query over the answer.
    """

    functions: Mapping[str, tuple[str, ...]]
    group_by: tuple[str, ...]
    where: Predicate | None
    text: str

    @property
    def description(self) -> str:
        """What the server computes, in words."""
        calls = [f"{function}({column})" for column, chosen in self.functions.items() for function in chosen]
        return ", ".join(calls) + (f" by {', '.join(self.group_by)}" if self.group_by else "")

    async def explain(self, table: AnsweringTable) -> ScanExplanation:
        """Has the server say how it would read the rows."""
        scan = table.scan([*dict.fromkeys([*self.group_by, *self.functions])])
        return await (scan if self.where is None else scan.where(self.where)).explain()

    async def ask(self, table: AnsweringTable) -> pa.Table:
        """Has the server compute the aggregates."""
        return await table.aggregate(self.functions, self.where, group_by=self.group_by)


class _NotPlainError(Exception):
    """The query is for DuckDB alone."""


def find_shortcut(
    statement: Expr, schema: pa.Schema, key: Sequence[str], parameters: Parameters
) -> TopRows | GroupTotals | None:
    """Returns what the server can compute of a query over one live table. None: nothing that has the same meaning.

    Args:
        statement: The query, which names one live table once. It is not changed.
        schema: The columns of the table.
        key: The key columns. Empty: the table has none.
        parameters: The values of the query's parameters.
    """
    try:
        return _PlainSelect(statement.copy(), schema, key, parameters).shortcut()
    except (_NotPlainError, SchemaMismatch, UsageError):
        return None


def find_predicate(
    statement: exp.Delete, schema: pa.Schema, key: Sequence[str], parameters: Parameters
) -> Predicate | None:
    """Returns the condition of a DELETE as a predicate that the server evaluates. None: the server cannot evaluate it.

    Args:
        statement: The statement, which has only a table and a condition. It is not changed.
        schema: The columns of the table.
        key: The key columns.
        parameters: The values of the statement's parameters.
    """
    from sqlglot import exp

    query = exp.select("*").from_(statement.this).where(statement.args["where"].this)
    try:
        return _PlainSelect(query, schema, key, parameters).where
    except (_NotPlainError, SchemaMismatch, UsageError):
        return None


class _PlainSelect:
    """A plain SELECT, whose columns have the names of the table's columns."""

    def __init__(self, statement: Expr, schema: pa.Schema, key: Sequence[str], parameters: Parameters) -> None:
        from sqlglot import exp

        self._schema = schema
        self._key = key
        if not isinstance(statement, exp.Select) or any(type(node).__name__ not in _PLAIN for node in statement.walk()):
            raise _NotPlainError
        self._select = statement
        self._aliases = {each.alias.lower() for each in statement.expressions if isinstance(each, exp.Alias)}
        self._fill_in(parameters)
        self._name_columns()
        where = statement.args.get("where")
        self.where = None if where is None else _predicate(where.this.sql(dialect="duckdb"), schema)

    def shortcut(self) -> TopRows | GroupTotals:
        from sqlglot import exp

        has_aggregates = any(self._select.find_all(exp.Count, exp.Sum, exp.Min, exp.Max))
        return self._totals() if has_aggregates or self._select.args.get("group") else self._top_rows()

    def _fill_in(self, parameters: Parameters) -> None:
        """Replaces parameters by their values."""
        from sqlglot import exp

        named = parameters if isinstance(parameters, Mapping) else {}
        listed: Iterator[object] = iter([] if parameters is None or isinstance(parameters, Mapping) else parameters)
        for node in list(self._select.find_all(exp.Placeholder, bfs=False)):
            if not node.this and node.find_ancestor(exp.Where) is None:
                raise _NotPlainError  # The clauses are not in the order of the text.
            value = named.get(node.name) if node.this else next(listed, None)
            # A float would be a decimal as a literal, and other values would need their types.
            if type(value) not in (int, str, bool):
                raise _NotPlainError
            node.replace(exp.convert(value))

    def _name_columns(self) -> None:
        """Gives columns the table's own names, without the table, in quotes."""
        from sqlglot import exp

        names: dict[str, list[str]] = {}
        for name in self._schema.names:
            names.setdefault(name.lower(), []).append(name)
        if self._aliases & {*names}:
            raise _NotPlainError
        for column in self._select.find_all(exp.Column):
            found = names.get(column.name.lower(), [])
            if len(found) == 1:
                column.replace(exp.column(exp.to_identifier(found[0], quoted=True)))
            elif found or column.name.lower() not in self._aliases or column.table:
                raise _NotPlainError

    def _top_rows(self) -> TopRows:
        from sqlglot import exp

        order, limit, offset = (self._select.args.get(name) for name in ("order", "limit", "offset"))
        if order is None or limit is None or len(order.expressions) != 1:
            raise _NotPlainError
        (ordered,) = order.expressions
        is_column = isinstance(ordered.this, exp.Column)
        if not is_column or ordered.args.get("nulls_first"):
            raise _NotPlainError
        rows = sum(_number(each.expression) for each in (limit, offset) if each is not None)
        self._check_scalar(ordered.this.name)
        if not 1 <= rows <= MAX_TOP_N:
            raise _NotPlainError
        used = {column.name for column in self._select.find_all(exp.Column)}
        has_all = any(self._select.find_all(exp.Star))
        columns = tuple(name for name in self._schema.names if has_all or name in used)
        return TopRows(rows, ordered.this.name, bool(ordered.args.get("desc")), columns, self.where)

    def _totals(self) -> GroupTotals:
        from sqlglot import exp

        group = self._select.args.get("group")
        keys = [] if group is None else [self._group_key(each) for each in group.expressions]
        if group is not None and (not keys or len([name for name, each in group.args.items() if each]) > 1):
            raise _NotPlainError
        functions: dict[str, dict[str, None]] = {}
        for node in list(self._select.find_all(exp.Count, exp.Sum, exp.Min, exp.Max)):
            column, function = self._aggregate(node)
            functions.setdefault(column, {})[function] = None
            answer = exp.column(exp.to_identifier(f"{column}_{function}", quoted=True))
            # A group has one row in the answer.
            again = exp.cast(exp.Sum(this=answer), "bigint") if function == "count" else type(node)(this=answer)
            node.replace(again)
        answered = {f"{column}_{each}" for column, chosen in functions.items() for each in chosen}
        if answered & {*self._schema.names} or not self._used() <= {*keys, *answered}:
            raise _NotPlainError
        self._select.set("where", None)
        chosen = {column: tuple(each) for column, each in functions.items()} or {self._counted(): ("count",)}
        return GroupTotals(chosen, tuple(dict.fromkeys(keys)), self.where, self._select.sql(dialect="duckdb"))

    def _used(self) -> set[str]:
        """Returns the columns that the query uses outside of its filter, without those that it names itself."""
        from sqlglot import exp

        columns = self._select.find_all(exp.Column)
        outside = (column.name for column in columns if column.find_ancestor(exp.Where) is None)
        return {name for name in outside if name.lower() not in self._aliases}

    def _aggregate(self, node: exp.AggFunc) -> tuple[str, str]:
        """Returns the column and the function of an aggregate."""
        from sqlglot import exp

        function, argument = _AGGREGATES[type(node).__name__], node.this
        if function == "count" and (argument is None or isinstance(argument, exp.Star)):
            return self._counted(), "count"
        if not isinstance(argument, exp.Column) or node.args.get("expressions"):
            raise _NotPlainError
        self._check_scalar(argument.name)
        return argument.name, function

    def _counted(self) -> str:
        """Returns a column whose count is that of the rows."""
        if not self._key:
            raise _NotPlainError
        return self._key[0]

    def _group_key(self, node: Expr) -> str:
        from sqlglot import exp

        if isinstance(node, exp.Literal):
            number = _number(node)
            if not 1 <= number <= len(self._select.expressions):
                raise _NotPlainError
            node = self._select.expressions[number - 1].unalias()
        if not isinstance(node, exp.Column):
            raise _NotPlainError
        self._check_scalar(node.name)
        # -0.0 and 0.0 may be one group or two.
        if pat.is_floating(self._schema.field(node.name).type):
            raise _NotPlainError
        return str(node.name)

    def _check_scalar(self, name: str) -> None:
        """Raises an error unless it is a column of the table, and not nested."""
        if name not in self._schema.names or pat.is_nested(self._schema.field(name).type):
            raise _NotPlainError


def _number(node: Any) -> int:  # noqa: ANN401  # of sqlglot
    if not node.is_int:
        raise _NotPlainError
    return int(node.name)


def _predicate(text: str, schema: pa.Schema) -> Predicate:
    """Returns the predicate of the server that is true for the rows for which DuckDB's condition is true."""
    return _as_in_duckdb(parse_where(text, schema), schema)


def _as_in_duckdb(predicate: Predicate, schema: pa.Schema) -> Predicate:
    for path in predicate.paths:
        type_ = schema.field(path.names[0]).type
        # DuckDB rounds literals to float32, and reads times in the time zone of its session.
        is_other = pat.is_float16(type_) or pat.is_float32(type_) or pat.is_nested(type_)
        if is_other or (pat.is_timestamp(type_) and type_.tz is not None):
            raise _NotPlainError
    match predicate:
        case Comparison(left=FieldPath(names=(name,)), operator=operator, right=right) if pat.is_floating(
            schema.field(name).type
        ):
            if not isinstance(right, Literal) or right.is_nan:
                raise _NotPlainError
            opposite = _WITH_NAN.get(operator)
            return predicate if opposite is None else Not(replace(predicate, operator=opposite))
        case Not(operand=operand):
            return Not(_as_in_duckdb(operand, schema))
        case _ if predicate.operands:
            return replace(predicate, parts=tuple(_as_in_duckdb(part, schema) for part in predicate.operands))  # type: ignore[call-arg]
        case _:
            return predicate
