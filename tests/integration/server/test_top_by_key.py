"""The first rows by a key column are the first ones of a scan in key order, which reads no others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from scankv.model.expressions import col
from scankv.model.expressions.wire import to_proto
from scankv.v1 import lookup_pb2, scan_pb2, table_pb2, write_pb2
from tests.support.tables import ipc_stream
from tests.support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scankv.model.expressions import Predicate
    from tests.support.server_process import ServerProcess

TEAMS, IDS = 20, 500
SCHEMA = pa.schema(
    [pa.field("team", pa.int32(), nullable=False), pa.field("id", pa.int64(), nullable=False), ("score", pa.int64())]
)
ROWS = [
    {"team": team, "id": number - IDS // 2, "score": (team * number) % 97}
    for team in range(TEAMS)
    for number in range(IDS)
]


@pytest.fixture(scope="module", params=[1, 4], ids=["one bucket", "four buckets"])
def table(shared_server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[tuple[Wire, str]]:
    name = f"topkey.b{request.param}"
    with Wire(shared_server.url) as wire:
        wire.tables.CreateTable(
            table_pb2.CreateTableRequest(
                name=name,
                arrow_schema=SCHEMA.serialize().to_pybytes(),
                primary_key=["team", "id"],
                buckets=request.param,
            )
        )
        batch = pa.RecordBatch.from_pylist(ROWS, SCHEMA)
        wire.writes.Upsert(write_pb2.UpsertRequest(table=name, rows=ipc_stream(SCHEMA, batch)))
        yield wire, name


CASES: dict[str, tuple[dict[str, Any], Predicate | None, bool]] = {
    "the last key column of one team": ({"by": "id"}, col("team") == 3, True),
    "the first key column, ascending": ({"by": "team", "ascending": True}, None, True),
    "the first key column, descending": ({"by": "team", "ascending": False}, None, False),
    "the first key column, with ties": ({"by": "team", "ascending": True, "with_ties": True}, None, False),
    "ids below a bound": ({"by": "id", "with_ties": True}, (col("team") == 3) & (col("id") < 7), True),
    "ids of several teams": ({"by": "id"}, col("team") >= 3, False),
    "a predicate on another column": ({"by": "id"}, (col("team") == 3) & (col("score") > 90), False),
}


@pytest.mark.parametrize("n", [1, 37])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("columns", [("team", "id", "score"), ("score",)], ids=",".join)
def test_the_rows_are_those_of_a_sort_and_few_are_read(
    table: tuple[Wire, str], case: str, n: int, columns: tuple[str, ...]
) -> None:
    (wire, name), (question, where, is_key_order) = table, CASES[case]
    for ascending in [question["ascending"]] if "ascending" in question else [False, True]:
        asked: dict[str, Any] = {"table": name, "n": n} | question | {"ascending": ascending}
        asked["columns"] = scan_pb2.ColumnNames(names=columns)
        response = wire.lookups.TopN(lookup_pb2.TopNRequest(where=None if where is None else to_proto(where), **asked))
        found = pa.ipc.open_stream(response.rows).read_all().to_pylist()
        kept = [row for row in ROWS if where is None or is_true(case, row)]
        ordered = sorted(kept, key=lambda row: (row[asked["by"]] * (1 if ascending else -1), row["team"], row["id"]))
        expected = ordered[:n]
        if asked.get("with_ties"):
            last = expected[-1][asked["by"]]
            expected += [row for row in ordered[n:] if row[asked["by"]] == last]
        assert found == [{name: row[name] for name in columns} for row in expected]
        assert (response.rows_scanned <= n + 4 * 512) if is_key_order else (response.rows_scanned >= n)
        explained = wire.lookups.ExplainTopN(
            lookup_pb2.ExplainTopNRequest(where=None if where is None else to_proto(where), **asked)
        )
        assert (explained.limit, explained.reverse) == (n, not ascending)
        if is_key_order:
            # The rows come in order, so they are decoded as they are read.
            assert {*columns} <= {*explained.columns_read}


def test_no_row_has_the_columns_of_the_others(table: tuple[Wire, str]) -> None:
    wire, name = table
    where, columns = to_proto(col("team") == TEAMS), scan_pb2.ColumnNames(names=["score"])
    response = wire.lookups.TopN(lookup_pb2.TopNRequest(table=name, by="id", n=5, where=where, columns=columns))
    found = pa.ipc.open_stream(response.rows).read_all()
    assert (found.num_rows, found.schema.names) == (0, ["score"])


def is_true(case: str, row: dict[str, int]) -> bool:
    return {
        "the last key column of one team": row["team"] == 3,
        "ids below a bound": row["team"] == 3 and row["id"] < 7,
        "ids of several teams": row["team"] >= 3,
        "a predicate on another column": row["team"] == 3 and row["score"] > 90,
    }[case]
