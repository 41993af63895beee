"""The counters of activity: what changes them, and how many tables have some."""

from __future__ import annotations

from scankv.model.forwarded_peers import GATEWAY_KEY
from streaming_server.access.forwarded_peers import ForwardedPeers
from streaming_server.activity import Activity, Counters


def found(activity: Activity) -> Counters:
    counters = activity.find("a")
    assert counters is not None
    return counters


def test_the_table_that_was_used_least_recently_loses_its_counters() -> None:
    activity = Activity(max_tables=3)
    for name in ("a", "b", "c"):
        activity.count_written_rows(name, 1)
    activity.count_read_rows("a", 1)
    activity.count_written_rows("d", 1)
    assert [*activity.tables_since(0.0)] == ["d", "a", "c"]
    assert activity.total.rows_written == 4


def test_a_size_that_is_the_same_is_no_change() -> None:
    now = 1.0
    activity = Activity(lambda: now)
    activity.set_disk_bytes({"a": 10})
    now = 2.0
    activity.set_disk_bytes({"a": 10})
    assert found(activity).changed_at == 1.0
    activity.set_disk_bytes({"a": 11})
    assert found(activity).changed_at == 2.0


def test_a_size_that_is_not_known_is_of_no_table_and_not_of_the_server() -> None:
    activity = Activity()
    activity.set_disk_bytes({"a": 10, "b": 20})
    assert activity.total.disk_bytes == 30
    activity.set_disk_bytes({"a": None, "b": 20})
    assert found(activity).disk_bytes is None
    assert activity.total.disk_bytes is None
    activity.set_disk_bytes({"b": 20})
    assert found(activity).disk_bytes == 0


def test_sizes_of_idle_tables_take_no_counters_of_used_ones() -> None:
    activity = Activity(max_tables=3)
    activity.count_written_rows("used", 7)
    activity.set_disk_bytes({f"idle{number}": 10 for number in range(20)})
    counters = activity.find("used")
    assert counters is not None
    assert counters.rows_written == 7
    assert activity.total.disk_bytes == 200
    for name in ("b", "c"):
        activity.count_written_rows(name, 1)
    assert [*activity.tables_since(0.0)] == ["c", "b", "used"]


def test_a_new_table_has_not_done_what_a_dropped_one_did() -> None:
    now = 1.0
    activity = Activity(lambda: now)
    activity.count_written_rows("a", 7)
    activity.forget("a")
    assert activity.find("a") is None
    now = 2.0
    activity.begin("a")
    assert (found(activity).rows_written, found(activity).began_at) == (0, 2.0)


def test_a_call_without_a_latency_counts_only_as_a_call() -> None:
    activity = Activity()
    activity.count_read("a", None)
    activity.count_read("a", 0.002)
    reads = found(activity).reads
    assert (reads.calls, sum(reads.classes), reads.seconds) == (2, 1, 0.002)


def test_only_a_key_without_a_token_is_of_the_own_gateway() -> None:
    peers = ForwardedPeers()
    with peers.believe() as key:
        assert peers.is_own([(GATEWAY_KEY, key)])
        assert not peers.is_own([(GATEWAY_KEY, key), ("authorization", "Bearer x")])
        assert not peers.is_own([(GATEWAY_KEY, key), (GATEWAY_KEY, key)])
        assert not peers.is_own([(GATEWAY_KEY, "")])
        assert not peers.is_own([])
    assert not peers.is_own([(GATEWAY_KEY, key)])
    assert not ForwardedPeers().is_own([(GATEWAY_KEY, "")])


def test_tables_that_have_not_changed_are_left_out() -> None:
    now = 1.0
    activity = Activity(lambda: now)
    activity.count_written_rows("a", 1)
    now = 2.0
    activity.count_written_rows("b", 1)
    assert [*activity.tables_since(1.5)] == ["b"]
    assert [*activity.tables_since(2.5)] == []
