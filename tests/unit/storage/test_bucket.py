"""One bucket on disk: its records and their times, the bounds of chunks, and wrong or missing durable watermarks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from scankv.model.errors import DataLoss
from streaming_server.clock import ServerClock
from streaming_server.storage.files.durable_watermark import DurableWatermark
from tests.support.clocks import DAY, FakeClocks
from tests.support.dying_writer import DEFINITION, write_and_die
from tests.support.offline import OfflineBucket, check_bucket, check_log, opened
from tests.support.tables import SCORES, define

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "buckets" / "0000"


def score(player: str, value: int | None) -> dict[str, Any]:
    return {"player": player, "score": value}


def test_a_rewrite_takes_offsets_without_row_deduplication(path: Path) -> None:
    with opened(path, define(SCORES, row_deduplicate="false")) as bucket:
        bucket.upsert(score("ann", 1))
        bucket.upsert(score("ann", 1))
        assert [kind for kind, _ in bucket.changes()] == ["+I", "-U", "+U"]
        check_bucket(bucket)


def test_a_big_commit_is_several_records_of_one_moment(path: Path) -> None:
    with opened(path, DEFINITION) as bucket:
        bucket.upsert(*(score(str(i), i) for i in range(9000)))
        records = bucket.log()
        assert [len(record.changes) for record in records] == [4096, 4096, 808]
        assert [record.offset for record in records] == [0, 4096, 8192]
        assert len({micros for record in records for micros in record.commit_micros.tolist()}) == 1
        bucket.upsert(*(score(str(i), -i) for i in range(9000)))
        assert check_bucket(bucket).num_rows == 9000


def test_an_unclean_stop_without_changes_begins_no_epoch(path: Path) -> None:
    with opened(path, DEFINITION) as bucket:
        bucket.upsert(score("ann", 1))
    write_and_die(path)
    with opened(path, DEFINITION) as bucket:
        assert bucket.bucket.state.epoch == 0


@pytest.mark.parametrize(("count", "flushes"), [(3, False), (200, True)])
def test_few_unflushed_changes_stay_in_the_log_of_a_clean_stop(path: Path, count: int, flushes: bool) -> None:
    players = [f"{number:04}".ljust(5_000) for number in range(count)]
    offline = OfflineBucket(path, DEFINITION)
    offline.upsert(*(score(player, 1) for player in players))
    offline.bucket.close(flush=False)
    assert bool(list(path.glob("*.sst"))) is flushes
    with opened(path, DEFINITION) as bucket:
        assert bucket.bucket.state.epoch == 0
        assert sorted(check_bucket(bucket)["player"].to_pylist()) == players


def test_commit_times_never_decrease_when_the_clock_goes_back(path: Path) -> None:
    machine = FakeClocks()
    with opened(path, DEFINITION, ServerClock(machine)) as bucket:
        for number, seconds in enumerate((0, -1000, 2000, -3000)):
            machine.set_wall(seconds)
            bucket.upsert(score("ann", number))
        check_log(bucket.log())
    # The server's clock file was lost, and the machine's clock is wrong.
    machine.set_wall(-DAY)
    with opened(path, DEFINITION, ServerClock(machine)) as bucket:
        bucket.upsert(score("ann", 9))
        check_log(bucket.log())


@pytest.mark.parametrize("max_rows", [1, 7, 100, 8192])
@pytest.mark.parametrize("max_bytes", [1024, 100_000, 1 << 24])
@pytest.mark.represented_by("1024-1", "16777216-8192")
def test_chunks_keep_to_their_bounds_and_lose_nothing(path: Path, max_rows: int, max_bytes: int) -> None:
    definition = define(pa.schema([("k", pa.int32()), ("v", pa.binary())]))
    lengths = [i % 50 if i % 97 else 3000 for i in range(600)]
    with opened(path, definition) as bucket:
        bucket.upsert(*({"k": k, "v": b"v" * length} for k, length in enumerate(lengths)))
        cursor = bucket.bucket.cursor(bucket.codec, bucket.codec.decoder(), bucket.keys.codec)
        batches = list(iter(lambda: cursor.next_batch(max_rows, max_bytes), None))
        cursor.close()
    for batch in batches:
        assert 1 <= batch.num_rows <= max_rows
        sizes = [lengths[k] + 24 for k in batch.column("k").to_pylist()]
        assert sum(sizes[:-1]) <= max_bytes
    assert pa.Table.from_batches(batches).column("k").to_pylist() == list(range(600))


def test_a_bucket_whose_log_is_shorter_than_its_mark_is_data_loss(path: Path) -> None:
    with opened(path, DEFINITION) as bucket:
        bucket.upsert(score("ann", 1))
    mark = DurableWatermark(path.with_suffix(".durable"))
    mark.write(2)
    mark.close()
    with pytest.raises(DataLoss, match="lost acknowledged changes"):
        OfflineBucket(path, DEFINITION)
    mark = DurableWatermark(path.with_suffix(".durable"))
    mark.write(1)
    mark.close()
    with opened(path, DEFINITION) as bucket:
        check_bucket(bucket)


def test_a_refused_bucket_can_be_opened_again_once_it_is_mended(path: Path) -> None:
    with opened(path, DEFINITION) as bucket:
        bucket.upsert(score("ann", 1))
    mark = path.with_suffix(".durable")
    good = mark.read_bytes()
    for position in range(len(good)):
        mark.write_bytes(good[:position] + bytes([good[position] ^ 0x10]) + good[position + 1 :])
        with pytest.raises(DataLoss, match="mark"):
            OfflineBucket(path, DEFINITION)
    for length in range(1, len(good)):
        mark.write_bytes(good[:length])
        with pytest.raises(DataLoss, match="mark"):
            OfflineBucket(path, DEFINITION)
    mark.write_bytes(good)
    with opened(path, DEFINITION) as bucket:
        assert check_bucket(bucket).num_rows == 1


def test_a_missing_or_empty_mark_loses_no_rows(path: Path) -> None:
    """The bucket may open or refuse to, but if it opens, it has all rows."""
    with opened(path, DEFINITION) as bucket:
        bucket.upsert(score("ann", 1))
    path.with_suffix(".durable").unlink()
    try:
        with opened(path, DEFINITION) as bucket:
            assert check_bucket(bucket).num_rows == 1
    except DataLoss:
        pass
