"""Tables whose changelog has no rows before changes, and tables without a changelog."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import InvalidOption, InvalidRequest, ScanSource, StartFrom, StopAt, UsageError, sync
from aio_client.mirror import mirror
from scankv.formats.debezium import debezium_lines
from streaming_server.storage.changelog.offsets import count_of
from tests.support.command_line import CommandLine

if TYPE_CHECKING:
    from aio_client import Client
    from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([("k", pa.int64()), pa.field("v", pa.int64(), nullable=False), ("tags", pa.list_(pa.string()))])
META = ("_change_type", "k", "v")


def create(client: sync.Client, name: str, changelog: str = "upsert", **options: Any) -> sync.Table:
    return client.create_table(name, SCHEMA, primary_key=["k"], buckets=2, changelog=changelog, **options)


def row(k: int, v: int) -> dict[str, Any]:
    return {"k": k, "v": v, "tags": ["a", str(v)]}


def changes_of(table: sync.Table, where: str | None = None, start: StartFrom = StartFrom.EARLIEST) -> sync.Scan:
    scan = table.scan(where=where).with_source(ScanSource.LOG).with_row_kind()
    return scan.start_from(start).stop_at(StopAt.LATEST)


def told(changes: sync.Scan) -> list[tuple[str, int, int | None]]:
    """Returns kind, key and value of each change, those of a key in order."""
    found = changes.to_arrow().select(META).to_pylist()
    return sorted((tuple(each.values()) for each in found), key=lambda each: each[1])


def changed(table: sync.Table) -> int:
    """Returns how many changes a table has had."""
    return sum(count_of(bucket.log_offset) for bucket in table.stats())


def test_without_rows_before_every_row_written_is_an_update_and_a_deleted_one_its_key(
    sync_client: sync.Client, name: str
) -> None:
    table = create(sync_client, name)
    table.upsert([row(1, 10), row(2, 20), row(1, 11)])
    table.upsert([row(1, 11)])
    table.delete([2, 3])
    changes = changes_of(table).to_arrow()
    assert told(changes_of(table)) == [("+U", 1, 11), ("+U", 1, 11), ("+U", 2, 20), ("-D", 2, None), ("-D", 3, None)]
    assert [field.nullable for field in changes.schema][-3:] == [False, True, True]
    deleted = [each for each in changes.to_pylist() if each["_change_type"] == "-D"]
    assert [each["tags"] for each in deleted] == [None, None]
    assert table.scan().to_pylist() == [row(1, 11)]


def test_a_full_start_of_a_table_without_rows_before_is_all_its_rows(sync_client: sync.Client, name: str) -> None:
    table = create(sync_client, name)
    table.upsert([row(n, n) for n in range(10)])
    table.delete([4])
    assert told(changes_of(table, start=StartFrom.FULL)) == [("+I", n, n) for n in range(10) if n != 4]
    assert told(changes_of(table, "k < 2", StartFrom.FULL)) == [("+I", 0, 0), ("+I", 1, 1)]


def test_what_cannot_be_told_is_refused_and_rows_that_do_not_match_may_be_deleted(
    sync_client: sync.Client, name: str
) -> None:
    table = create(sync_client, name)
    table.upsert([row(1, 10), row(2, 20)])
    table.upsert([row(2, 5), row(3, 5)])
    table.delete([1])
    assert told(changes_of(table, "k > 1")) == [("+U", 2, 20), ("+U", 2, 5), ("+U", 3, 5)]
    with pytest.raises(InvalidRequest, match=r'changelog="upsert".*but not "v".*unmatched="delete"') as refused:
        changes_of(table, "k > 1 AND v >= 10").to_arrow()
    assert refused.value.details["column"] == "v"
    deleting = changes_of(table, "v >= 10").with_unmatched("delete")
    assert told(deleting) == [("+U", 1, 10), ("-D", 1, None), ("+U", 2, 20), ("-D", 2, None), ("-D", 3, None)]
    assert {each["tags"] for each in deleting.to_pylist() if each["_change_type"] == "-D"} == {None}
    chosen = table.scan(["tags", "k"], where="v >= 10").with_source(ScanSource.LOG).with_row_kind()
    chosen = chosen.with_unmatched("delete").start_from(StartFrom.EARLIEST).stop_at(StopAt.LATEST)
    assert [(each["k"], each["tags"]) for each in chosen.to_pylist() if each["_change_type"] == "+U"] == [
        (1, ["a", "10"]),
        (2, ["a", "20"]),
    ]
    # Deleted rows are deletions, even if null matches.
    assert ("-D", 1, None) in told(changes_of(table, "tags IS NULL").with_unmatched("delete"))
    with pytest.raises(UsageError, match='"refuse" or "delete"'):
        changes_of(table).with_unmatched("keep")  # type: ignore[arg-type]


def test_a_changelog_with_rows_before_needs_no_word_about_those_that_do_not_match(
    sync_client: sync.Client, name: str
) -> None:
    table = create(sync_client, name, "full")
    table.upsert([row(1, 10), row(2, 1)])
    table.upsert([row(1, 5)])
    expected = [("+I", 1, 10), ("-D", 1, 10)]
    assert told(changes_of(table, "v >= 10")) == told(changes_of(table, "v >= 10").with_unmatched("delete")) == expected


def test_a_large_table_that_is_not_counted_is_split_evenly(sync_client: sync.Client, name: str) -> None:
    table = create(sync_client, name, "none")
    table.upsert(pa.table({"k": range(30_000), "v": [0] * 30_000, "tags": [None] * 30_000}, SCHEMA))
    with table.snapshot() as snapshot:
        parts = [part.to_arrow().num_rows for part in table.scan(["k"]).as_of(snapshot).splits(8)]
    assert sum(parts) == 30_000
    assert max(parts) < 1.2 * 30_000 / 8


def test_an_index_has_old_rows_read_so_that_equal_ones_are_no_change(sync_client: sync.Client, name: str) -> None:
    for changelog in ("upsert", "none"):
        table = create(sync_client, f"{name}{changelog}", changelog, indexes=["v"])
        table.upsert([row(1, 10), row(2, 20), row(3, 30)])
        table.upsert([row(1, 10), row(2, 25)])
        table.delete([3, 4])
        assert changed(table) == 3 + 1 + 1
        assert sum(bucket.rows or 0 for bucket in table.stats()) == table.count() == 2
        assert table.top_n(5, order_by="v").column("k").to_pylist() == [2, 1]
        assert all(bucket.is_consistent for bucket in sync_client.check_table(table.name))
    told_ = told(changes_of(sync_client.table(f"{name}upsert")))
    assert told_ == [("+U", 1, 10), ("+U", 2, 20), ("+U", 2, 25), ("+U", 3, 30), ("-D", 3, None)]


def test_an_index_may_come_and_go_on_rows_that_are_not_counted(sync_client: sync.Client, name: str) -> None:
    table = create(sync_client, name)
    table.upsert([row(n, n) for n in range(300)])
    table.delete(list(range(10)))
    table = sync_client.alter_table(name, add_indexes=["v"])
    (status,) = table.index_status()
    assert (status.ready, status.rows, status.rows_done) == (True, None, 0)
    before = changed(table)
    table.upsert([row(n, n) for n in range(290, 310)])
    assert changed(table) == before + 10
    assert table.top_n(2, order_by="v").column("k").to_pylist() == [309, 308]
    assert table.count() == 300
    assert all(bucket.is_consistent for bucket in sync_client.check_table(name))
    table = sync_client.alter_table(name, drop_indexes=["v"])
    table.upsert([row(300, 300)])
    assert changed(table) == before + 11
    table = sync_client.alter_table(name, add_indexes=["v"])
    assert table.top_n(2, order_by="v").column("k").to_pylist() == [309, 308]
    assert all(bucket.is_consistent for bucket in sync_client.check_table(name))


def test_a_table_without_changelog_counts_its_changes_and_refuses_whoever_wants_them(
    sync_client: sync.Client, name: str, shared_server: ServerProcess
) -> None:
    table = create(sync_client, name, "none")
    table.upsert([row(1, 10), row(2, 20), row(2, 21)])
    table.upsert([row(1, 10)])
    table.delete([2, 3])
    assert changed(table) == 2 + 1 + 2
    assert table.scan().to_pylist() == [row(1, 10)]
    why = r'changelog="none".*set changelog="full" or "upsert"'
    for start in (StartFrom.FULL, StartFrom.EARLIEST, StartFrom.LATEST, StartFrom.last(1)):
        with pytest.raises(InvalidRequest, match=why):
            changes_of(table, start=start).to_arrow()
    consumer = table.scan().with_source(ScanSource.LOG).with_row_kind().with_consumer_id("billing")
    with pytest.raises(InvalidRequest, match=why):
        next(iter(consumer.stream()))
    assert table.consumers() == []
    tailed = CommandLine(shared_server.url)("tail", name, "--from", "earliest", "--until", "latest", code=1)
    assert 'changelog="none"' in " ".join(tailed.stderr.split())


@pytest.mark.asyncio
async def test_a_mirror_of_a_table_without_changelog_is_refused(client: Client, name: str) -> None:
    table = await client.create_table(name, SCHEMA, primary_key=["k"], changelog="none")
    with pytest.raises(InvalidRequest, match='changelog="none"'):
        async with mirror(table):
            pass


def test_debezium_has_no_row_before_where_the_changelog_has_none(sync_client: sync.Client, name: str) -> None:
    table = create(sync_client, name)
    table.upsert([row(1, 10)])
    table.upsert([row(1, 11)])
    table.delete([1])
    envelopes = [
        json.loads(line)
        for batch in changes_of(table).stream()
        for line in debezium_lines(batch, "db", "t").to_pybytes().splitlines()
    ]
    assert [(each["op"], each["before"], each["after"]) for each in envelopes] == [
        ("u", None, row(1, 10)),
        ("u", None, row(1, 11)),
        ("d", {"k": 1, "v": None, "tags": None}, None),
    ]


def test_describe_says_that_rows_are_not_counted(
    sync_client: sync.Client, name: str, shared_server: ServerProcess
) -> None:
    table = create(sync_client, name)
    scankv = CommandLine(shared_server.url)
    assert "not counted" not in scankv("describe", name).text
    table.upsert([row(1, 1)])
    assert "not counted" in scankv("describe", name).text
    statistics = scankv("describe", name, "--json").json["stats"]
    assert sorted((bucket["rows"] for bucket in statistics), key=str) == [0, None]
    assert scankv("count", name).text.strip() == "1"
    with table.snapshot():
        assert name in scankv("snapshots", "list").text


def test_an_unknown_changelog_is_refused_with_those_there_are(sync_client: sync.Client, name: str) -> None:
    with pytest.raises(InvalidOption, match='"full" or "upsert" or "input" or "none"'):
        create(sync_client, name, "before")
