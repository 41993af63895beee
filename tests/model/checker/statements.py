"""How do operations ask in SQL what they else ask by the API?"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final
from zlib import crc32

from tests.model.checker.drawing import KINDS
from tests.model.checker.predicates import names_of, to_sql

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aio_client.sync import Client
    from tests.model.checker.model import ModelView, Shown
    from tests.model.checker.operation import Arguments
    from tests.model.checker.predicates import Where

_FUNCTIONS: Final = {"mean": "avg"}


def are_asked(arguments: Arguments) -> bool:
    """Returns whether a step asks in SQL: as its script says, or two in five without a draw."""
    return bool(arguments.get("sql", crc32(repr(arguments).encode()) % 5 < 2))


def can_be_asked(view: ModelView, arguments: Arguments, names: Iterable[str]) -> bool:
    """Returns whether a step asks in SQL, and DuckDB compares the columns as the model does: NaN is a number for it."""
    floats = {column.name for column in view.columns if KINDS[column.kind] is float}
    where = arguments["where"]
    is_live = are_asked(arguments) and arguments["snapshot"] is None
    return is_live and _is_text(where) and floats.isdisjoint([*names, *names_of(where)])


def _is_text(where: Where | None) -> bool:
    """Returns whether a predicate is the same text in SQL and in Python."""
    text = to_sql(where)
    return where is None or (text is not None and "\\" not in text)


def _filter(where: Where | None) -> str:
    return "" if where is None else f" where {to_sql(where)}"


def aggregate(
    client: Client, table: str, where: Where | None, functions: dict[str, list[str]], groups: list[str]
) -> list[Shown]:
    """Returns aggregates, as `Table.aggregate` does."""
    of_columns = [
        f"{_FUNCTIONS.get(each, each)}({name}) as {name}_{each}"
        for name, chosen in functions.items()
        for each in chosen
    ]
    names = ", ".join(groups)
    ends = f" group by {names} order by {names}" if groups else ""
    found = client.sql(f"select {', '.join([*groups, *of_columns])} from {table}{_filter(where)}{ends}").to_pylist()
    # DuckDB adds integers up to numbers of 128 bits.
    return [{name: int(each) if isinstance(each, Decimal) else each for name, each in row.items()} for row in found]


def count(client: Client, table: str, where: Where | None) -> int:
    """Returns how many rows match."""
    (row,) = client.sql(f"select count(*) as n from {table}{_filter(where)}").to_pylist()
    return int(row["n"])


def top_n(
    client: Client, table: str, where: Where | None, by: str, n: int, *, key: list[str], ends: str
) -> list[Shown]:
    """Returns the first rows by a column, equal values by key."""
    order = ", ".join([f"{by}{ends} nulls last", *key])
    return client.sql(f"select * from {table}{_filter(where)} order by {order} limit {n}").to_pylist()


def counters(client: Client, columns: dict[str, str]) -> dict[str, dict[int, int | None]]:
    """Returns a column of several tables by table and key, all by one query."""
    parts = [f"select '{name}' as name, k, {column} as n from {name}" for name, column in columns.items()]
    found: dict[str, dict[int, int | None]] = {name: {} for name in columns}
    for row in client.sql(" union all ".join(parts)).to_pylist():
        found[row["name"]][row["k"]] = row["n"]
    return found
