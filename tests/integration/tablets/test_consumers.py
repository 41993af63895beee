"""Consumers of tables with tablets: one position of the table, one stream at a time, and one fence for all tablets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from aio_client import ConsumerFenced, ConsumerNotFound, ScanKvError, StartFrom, StopAt, connect, sync
from tests.integration.tablets.test_changes import create, rows

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.timeout(120)

KEYS = 100


@pytest.fixture(scope="module")
def settings() -> tuple[str, ...]:
    return ("--set", "follow_heartbeat_seconds=0.2")


def take(table: sync.Table, start: StartFrom = StartFrom.EARLIEST, commit: bool = True, **how: Any) -> list[Any]:
    """Returns the changes that a consumer has not committed."""
    with table.changes(start, StopAt.LATEST, consumer_id="c", **how).stream() as stream:
        found = [row for batch in stream for row in batch.drop_columns(["_commit_timestamp"]).to_pylist()]
        if commit:
            stream.commit()
    return sorted(found, key=lambda row: (row["_bucket"], row["_log_offset"] or -1, row["_change_type"], row["k"]))


def known(table: sync.Table) -> list[Any]:
    """Returns what the list of consumers says, without times and what differs between tables."""
    return [(each.id, dict(each.log_offsets), each.lag, each.live, each.phase) for each in table.consumers()]


@pytest.mark.breadth
def test_consumers_behave_as_those_of_any_other_table(client: sync.Client) -> None:
    def story(table: sync.Table) -> list[Any]:
        table.upsert(rows(range(KEYS)))
        found: list[Any] = [known(table), take(table, StartFrom.FULL, commit=False), known(table)]
        found += [take(table, StartFrom.FULL), take(table), known(table)]
        table.upsert(rows(range(0, KEYS, 3), v=1))
        found += [known(table), take(table, shard=(0, 2)), known(table), take(table, shard=(6, 7)), known(table)]
        found += [dict(table.reset_consumer("c", StartFrom.EARLIEST)), known(table), len(take(table)), known(table)]
        ends = table.log_offsets()
        found += [
            dict(table.reset_consumer("c", StartFrom.offsets({b: at // 2 for b, at in ends.items()}))),
            take(table),
        ]
        found += [dict(table.reset_consumer("c", StartFrom.last(10_000))), known(table)]
        found += [dict(table.reset_consumer("c", StartFrom.FULL)), known(table), take(table), known(table)]
        with pytest.raises(ScanKvError) as caught:
            table.reset_consumer("c", StartFrom.offsets({b: at + 9 for b, at in ends.items()}))
        found += [type(caught.value), caught.value.message.replace(table.name, "TABLE"), known(table)]
        table.delete_consumer("c")
        with pytest.raises(ConsumerNotFound):
            table.delete_consumer("c")
        with pytest.raises(ConsumerNotFound):
            take(table, must_exist=True)
        return [*found, known(table), take(table, StartFrom.LATEST), known(table)]

    whole, divided = story(create(client, 1)), story(create(client))
    for number, (one, other) in enumerate(zip(whole, divided, strict=True)):
        assert other == one, number


def test_a_consumer_that_reads_no_buckets_has_a_stream_and_no_position(client: sync.Client) -> None:
    table = create(client)
    table.upsert(rows(range(KEYS)))
    assert take(table, shard=(8, 9)) == []
    assert known(table) == [("c", {}, 0, False, "changes")]


def test_a_stream_that_takes_a_consumer_over_ends_the_one_before(client: sync.Client) -> None:
    table = create(client)
    table.upsert(rows(range(KEYS)))
    with table.changes(StartFrom.EARLIEST, consumer_id="c").stream() as earlier:
        next(earlier)
        with table.changes(StartFrom.EARLIEST, consumer_id="c").stream() as later:
            next(later)
            with pytest.raises(ConsumerFenced):
                earlier.commit()
            with pytest.raises(ConsumerFenced):
                for _ in earlier:
                    pass
            later.commit()
            assert [each.live for each in table.consumers()] == [True]
            table.delete_consumer("c")
            with pytest.raises(ConsumerFenced):
                for _ in later:
                    pass


def test_of_several_takeovers_at_once_exactly_one_wins(server: ServerProcess, client: sync.Client) -> None:
    table = create(client)
    table.upsert(rows(range(KEYS)))

    async def race() -> list[str]:
        async with connect(server.url, operation_timeout=20) as other:
            mine = await other.table(table.name)

            async def read() -> str:
                async with mine.changes(StartFrom.EARLIEST, consumer_id="c").stream() as stream:
                    try:
                        seen = 0
                        while seen < KEYS:
                            seen += len(await anext(stream))
                        await stream.commit()
                    except ConsumerFenced:
                        return "fenced"
                    return "won"

            return await asyncio.gather(*(read() for _ in range(5)))

    outcomes = asyncio.run(race())
    assert "won" in outcomes
    assert known(table)[0][2] == 0
