"""Every call has a route among workers, tables are divided evenly, and answers of workers merge into one."""

from __future__ import annotations

from collections import Counter

import pytest
from google.protobuf import descriptor_pool
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from scankv.v1 import admin_pb2, table_pb2, transaction_pb2
from streaming_server.services import routes, routing
from streaming_server.services.merged_answers import merge_lists, merge_metrics, merge_stats, merge_transactions
from streaming_server.services.permissions import PERMISSIONS, NamedTable
from streaming_server.storage.tables.placement import ALONE, Placement

PREFIX = "scankv.v1."
OF_TRANSACTIONS = {
    "TransactionService/BeginTransaction",
    "TransactionService/CommitTransaction",
    "TransactionService/AbortTransaction",
    "TransactionService/GiveUpTransaction",
}

OF_ANY = {"SnapshotService/PinSnapshots"}
"""Calls that the worker carries out which gets them, by calls to others."""


@pytest.mark.parametrize("method", [name.removeprefix(PREFIX) for name in PERMISSIONS if name.startswith(PREFIX)])
def test_every_call_has_a_route(method: str) -> None:
    """A new call fails here until somebody has decided which worker answers it."""
    scopes = [each.scope for each in PERMISSIONS[PREFIX + method].requirements]
    by_table = [scope for scope in scopes if isinstance(scope, NamedTable)]
    is_merged, is_found = method in routes.MERGED, method in routing._BY_ID
    if by_table:
        assert is_merged is all(scope.may_be_empty for scope in by_table), "an empty table stands for all of them"
        assert not is_found
    else:
        others = method in OF_ANY, method in OF_TRANSACTIONS, method in routing._OF_FIRST, method == routes.ACTIVITY
        assert [is_merged, is_found, *others].count(True) == 1


@pytest.mark.parametrize("method", [name for name in PERMISSIONS if name.startswith(PREFIX)])
def test_a_call_that_all_workers_answer_has_one_answer(method: str) -> None:
    name = method.removeprefix(PREFIX)
    if name in {*routes.MERGED, *routing._BY_ID, *OF_TRANSACTIONS, routes.ACTIVITY}:
        described = descriptor_pool.Default().FindMethodByName(method.replace("/", "."))
        assert not described.server_streaming


@given(st.integers(2, 16))
def test_every_table_has_one_owner_and_owners_have_similar_numbers_of_tables(workers: int) -> None:
    names = [f"game.table_{number}" for number in range(200 * workers)]
    places = [Placement(number, workers) for number in range(workers)]
    for name in names:
        owners = [place.number for place in places if place.owns(name)]
        assert owners == [places[0].owner_of(name)]
    owned = Counter(places[0].owner_of(name) for name in names)
    assert all(130 < owned[number] < 270 for number in range(workers))
    assert all(map(ALONE.owns, names))


def test_lists_are_joined_in_the_order_of_names() -> None:
    first = table_pb2.ListTablesResponse(tables=[table_pb2.Table(name="a"), table_pb2.Table(name="d")])
    second = table_pb2.ListTablesResponse(
        tables=[table_pb2.Table(name="b")], damaged=[table_pb2.DamagedTable(name="c", reason="why")]
    )
    merged = merge_lists({0: first, 1: second})
    assert [table.name for table in merged.tables] == ["a", "b", "d"]
    assert [table.reason for table in merged.damaged] == ["why"]


def test_the_oldest_scan_and_the_latest_slow_call_come_first() -> None:
    def ages(*millis: int) -> list[admin_pb2.LiveScan]:
        return [admin_pb2.LiveScan(scan_id=f"{each}", table="t", age_millis=each) for each in millis]

    scans = {0: admin_pb2.ListScansResponse(scans=ages(9, 2)), 1: admin_pb2.ListScansResponse(scans=ages(5))}
    assert [each.age_millis for each in merge_lists(scans).scans] == [9, 5, 2]
    calls = {
        number: admin_pb2.ListSlowCallsResponse(calls=[admin_pb2.SlowCall(age_millis=each) for each in millis])
        for number, millis in enumerate([(1, 8), (4,)])
    }
    assert [each.age_millis for each in merge_lists(calls).calls] == [1, 4, 8]


def test_a_transaction_that_all_workers_know_is_listed_once() -> None:
    def listed(*transactions: transaction_pb2.OpenTransaction) -> transaction_pb2.ListTransactionsResponse:
        return transaction_pb2.ListTransactionsResponse(transactions=transactions)

    opened = transaction_pb2.OpenTransaction
    merged = merge_transactions(
        {
            0: listed(opened(token="new", age_millis=1), opened(token="old", age_millis=9, rows=2, tables=["b"])),
            1: listed(
                opened(token="new", age_millis=2, locked_keys=3, waits_for=["old"], committing=True),
                opened(token="old", age_millis=8, rows=1, tables=["a"], stuck="why"),
            ),
        }
    )
    assert list(merged.transactions) == [
        opened(token="old", age_millis=9, rows=3, tables=["a", "b"], stuck="why"),
        opened(token="new", age_millis=2, locked_keys=3, waits_for=["old"], committing=True),
    ]


def test_statistics_are_sums_except_for_what_cannot_be_added() -> None:
    merged = merge_stats(
        {
            0: admin_pb2.StatsResponse(
                version="1",
                rows_written=3,
                uptime_millis=10,
                free_disk_bytes=7,
                loop_turns=[1, 2],
                damaged_buckets=["a/1"],
            ),
            1: admin_pb2.StatsResponse(
                version="1",
                rows_written=4,
                uptime_millis=5,
                free_disk_bytes=6,
                loop_turns=[1, 2, 3],
                disk=table_pb2.DiskUse(rows=9, total=9),
            ),
        }
    )
    assert (merged.version, merged.rows_written, merged.uptime_millis, merged.free_disk_bytes) == ("1", 7, 10, 6)
    assert list(merged.loop_turns) == [2, 4, 3]
    assert list(merged.damaged_buckets) == ["a/1"]
    assert merged.disk == table_pb2.DiskUse(rows=9, total=9)


def test_metrics_of_workers_are_told_apart_by_a_label() -> None:
    text = (
        "# HELP rows_total Rows.\n# TYPE rows_total counter\n"
        'rows_total{table="a b}"} 1.0\nrows_total{table="b"} 2.0\n'
        "# HELP up Whether it runs.\n# TYPE up gauge\nup 1.0\n"
    )
    answers = {number: admin_pb2.MetricsResponse(text=text.encode(), content_type="text/plain") for number in (0, 2)}
    merged = merge_metrics(answers)
    families = list(text_string_to_metric_families(merged.text.decode()))
    assert [family.name for family in families] == ["rows", "up"]
    assert merged.content_type == "text/plain"
    found = [(sample.labels, sample.value) for family in families for sample in family.samples]
    assert found == [
        ({"worker": "0", "table": "a b}"}, 1.0),
        ({"worker": "0", "table": "b"}, 2.0),
        ({"worker": "2", "table": "a b}"}, 1.0),
        ({"worker": "2", "table": "b"}, 2.0),
        ({"worker": "0"}, 1.0),
        ({"worker": "2"}, 1.0),
    ]


@pytest.mark.parametrize(
    ("most", "remaining", "expected"),
    [(8, 10, 7.5), (8, 20, 8), (3, 10, 3), (8, 2, 1.5), (8, None, 8), (None, 2, 2), (None, None, None)],
)
def test_a_call_is_answered_before_its_client_stops_waiting(
    most: float | None, remaining: float | None, expected: float | None
) -> None:
    """A part that other workers may do without would otherwise end with the call."""
    assert routes._time_to_answer(most, remaining) == expected
