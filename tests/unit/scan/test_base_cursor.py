"""A base and its delta return exactly the rows that RocksDB has, step by step."""

from __future__ import annotations

import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from scankv.model.errors import DataLoss
from scankv.model.expressions import bind
from scankv.model.expressions.columns import col
from scankv.model.keys.key_range import KeyRange
from streaming_server.engine.merging.outcome import merge_delete, merge_upsert
from streaming_server.engine.merging.prepared_rows import prepare
from streaming_server.scan.chunk_source import BatchMessage
from streaming_server.scan.columnar.base_cursor import BaseCursor
from streaming_server.scan.columnar.delta import EMPTY_DELTA, Delta, MergedDelta
from streaming_server.scan.row_reader import _FilteringDecoder
from streaming_server.scan.rows.row_representations import KeyedRepresentation
from streaming_server.storage.bucket.bucket_change import BucketChange
from streaming_server.storage.columnar import base_writer
from streaming_server.storage.columnar.base_writer import BaseWriter
from streaming_server.storage.columnar.columnar_base import ColumnarBase
from streaming_server.storage.rows.key_encoder import KeyEncoder
from streaming_server.storage.rows.row_codec import RowCodec
from streaming_server.storage.rows.table_codec import TableCodec
from tests.support.offline import OfflineBucket
from tests.support.tables import define, exact_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from scankv.model.expressions import BoundPredicate
    from scankv.model.tables.schema import TableDefinition

ROOM = 1 << 20
ALL_KEYS = KeyRange()


class FollowedBucket(OfflineBucket):
    """A bucket that passes its writes to a delta, as the engine does."""

    delta: Delta | None = None

    def upsert_batch(self, batch: pa.RecordBatch) -> None:
        for part in prepare(batch, TableCodec(self.codec, self.keys, {}, None), keys_only=False):
            change = merge_upsert(self._old(part), part, row_deduplicate=self.definition.options.row_deduplicate)
            self._apply(change, change.put_keys, change.put_values)

    def delete(self, *keys: dict[str, Any]) -> None:
        self.delete_batch(pa.RecordBatch.from_pylist(list(keys), schema=self.definition.key_schema))

    def delete_batch(self, keys: pa.RecordBatch) -> None:
        for part in prepare(keys, TableCodec(self.codec, self.keys, {}, None), keys_only=True):
            change = merge_delete(self._old(part), part)
            self._apply(change, change.delete_keys, None)

    def delete_range(self, keys: KeyRange) -> None:
        self.bucket.apply(BucketChange.of_deleted_range(keys, definition=self.definition, rows=None))
        if self.delta is not None:
            self.delta.delete_ranges([keys], self.bucket.state.log_offset)

    def _apply(self, change: Any, keys: pa.Array, values: pa.Array | None) -> None:
        self.bucket.apply(change)
        if self.delta is not None:
            self.delta.add(keys, values, self.bucket.state.log_offset)

    def alter(self, definition: TableDefinition) -> None:
        self.definition, self.codec, self.keys = definition, RowCodec(definition), KeyEncoder(definition)

    def cut_base(self, directory: Path, batch_rows: int, zone_columns: Sequence[str] | None = None) -> ColumnarBase:
        """Builds a base of the current rows, in batches of this size; the delta starts again."""
        rows = self.rows().combine_chunks()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(base_writer, "BATCH_ROWS", batch_rows)
            writer = BaseWriter(
                directory, self.definition, 0, zone_columns=zone_columns, now_micros=time.time_ns() // 1000
            )
            for batch in rows.to_batches():
                writer.write(batch, self.keys.encode(batch)[0])
            offset = self.bucket.state.log_offset
            path = writer.finish(offset)
        self.delta = Delta(offset)
        return ColumnarBase.open(path, "bucket 0")


@contextmanager
def followed(directory: Path, definition: TableDefinition) -> Iterator[FollowedBucket]:
    offline = FollowedBucket(directory / "b" / "0000", definition)
    try:
        yield offline
    finally:
        offline.bucket.close()


@dataclass
class Asked:
    """The request of a scan."""

    columns: list[str] | None = None
    residual: BoundPredicate | None = None
    key_range: KeyRange = ALL_KEYS
    reverse: bool = False


def cursor_of(offline: FollowedBucket, base: ColumnarBase, asked: Asked) -> BaseCursor:
    assert offline.delta is not None
    net = offline.delta.view().merge
    return BaseCursor(
        base,
        net,
        offline.codec,
        asked.columns,
        asked.residual,
        asked.key_range,
        reverse=asked.reverse,
        location="bucket 0",
    )


def expected(offline: OfflineBucket, asked: Asked) -> tuple[list[tuple[Any, ...]], list[bytes]]:
    """Returns what the iterator returns: the matching rows, and the keys of all rows in the range."""
    decoder: Any = offline.codec.decoder(asked.columns)
    if asked.residual is not None:
        decoder = _FilteringDecoder(offline.codec, decoder, asked.residual)
    found = []
    for wanted in (decoder, offline.codec.decoder(offline.definition.primary_key)):
        with closing(
            offline.bucket.cursor(offline.codec, wanted, offline.keys.codec, asked.key_range, reverse=asked.reverse)
        ) as cursor:
            found.append(list(iter(partial(cursor.next_batch, 8192, ROOM), None)))
    kept = [row for batch in found[0] for row in exact_rows(batch)]
    return kept, [key for batch in found[1] for key in offline.keys.codec.encode(batch.columns).to_pylist()]


SMALL = define(pa.schema([("k", pa.int64()), ("v", pa.int64()), ("w", pa.string())]), "k")


def rows_of(numbers: Sequence[int], times: int = 1) -> pa.RecordBatch:
    values = {"k": numbers, "v": [number * times for number in numbers], "w": [f"w{number}" for number in numbers]}
    return pa.RecordBatch.from_pydict(values, schema=SMALL.schema.arrow)


@pytest.fixture
def offline(tmp_path: Path) -> Iterator[FollowedBucket]:
    with followed(tmp_path, SMALL) as bucket:
        yield bucket


@pytest.fixture
def base(offline: FollowedBucket, tmp_path: Path) -> ColumnarBase:
    """Builds a base of rows 0, 10, ... 990 in batches of ten."""
    offline.upsert_batch(rows_of(range(0, 1000, 10)))
    return offline.cut_base(tmp_path / "bases", 10)


@pytest.mark.parametrize(
    ("first", "end"),
    [(0, 1000), (0, 500), (300, 400), (305, 395), (301, 305), (250, 755), (740, 2000), (-50, 0), (2000, 3000)],
)
@pytest.mark.represented_by("0-1000", "2000-3000")
def test_a_base_without_a_range_has_all_other_rows(
    offline: FollowedBucket, base: ColumnarBase, first: int, end: int
) -> None:
    keys = KeyRange(*offline.keys.encode(rows_of([first, end]))[0].to_pylist())
    rest = base.without([keys])
    offline.delete_range(keys)
    expected_keys = [key for key in range(0, 1000, 10) if not first <= key < end]
    assert read(cursor_of(offline, rest, Asked())) == expected_keys
    assert (rest.info.rows, rest.file_rows) == (len(expected_keys), 100)
    assert read(cursor_of(offline, rest, Asked(reverse=True)), rows=3) == expected_keys[::-1]
    assert base.info.rows == 100, "running scans read the base that they have begun with"
    # What is written to the range later is in the delta.
    offline.upsert_batch(rows_of([first, first + 5]))
    assert read(cursor_of(offline, rest, Asked())) == sorted({*expected_keys, first, first + 5})


def read(cursor: BaseCursor, rows: int = 1000) -> list[int]:
    with closing(cursor):
        return [
            key for batch in iter(lambda: cursor.next_batch(rows, ROOM), None) for key in batch.column("k").to_pylist()
        ]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "changed",
    [
        pytest.param([], id="nothing"),
        pytest.param([0, 100, 200], id="first keys of batches"),
        pytest.param([90, 190, 990], id="last keys of batches"),
        pytest.param([-5, 95, 99, 101, 991, 999], id="between batches, before the first and behind the last"),
        pytest.param(range(0, 1000, 10), id="everything"),
        pytest.param(range(-200, 1200, 3), id="far more than there is"),
    ],
)
@pytest.mark.parametrize("delete", [False, True])
@pytest.mark.represented_by("False-nothing-False", "True-far more than there is-True")
def test_changes_at_any_place_are_seen(
    offline: FollowedBucket, base: ColumnarBase, changed: Sequence[int], reverse: bool, delete: bool
) -> None:
    if changed:
        offline.upsert_batch(rows_of(changed, times=7))
    if delete:
        offline.delete(*({"k": key} for key in changed))
    kept, keys = expected(offline, Asked(reverse=reverse))
    for max_rows in (1, 7, 1000):
        cursor = cursor_of(offline, base, Asked(reverse=reverse))
        found: list[Any] = []
        while (batch := cursor.next_batch(max_rows, ROOM)) is not None:
            assert batch.num_rows <= max_rows
            found += exact_rows(batch)
        assert found == kept
        assert cursor.rows_scanned == len(keys)
        cursor.close()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("changed", [[], [105, 110, 500]])
def test_of_rows_that_are_kept_stored_form_and_keys_are_their_own(
    offline: FollowedBucket, base: ColumnarBase, changed: Sequence[int], reverse: bool
) -> None:
    if changed:
        offline.upsert_batch(rows_of(changed, times=7))
        offline.delete({"k": 120})
    residual = bind(col("k").is_in([20, 50, 110, 105, 130, 180, 500, 980]), SMALL.schema.arrow)
    found = []
    with closing(cursor_of(offline, base, Asked(["k"], residual, reverse=reverse))) as cursor:
        while (rows := cursor.next_rows(15, ROOM)) is not None:
            keys = KeyedRepresentation(pa.schema([SMALL.schema.arrow.field("k")])).decode(rows).column("k")
            assert rows.field(0).equals(offline.keys.codec.encode([keys]))
            stored = cursor.stored(pa.array(range(len(rows))[::-1], pa.int64()))
            found += exact_rows(offline.codec.decoder().decode(stored))[::-1]
    assert found == expected(offline, Asked(None, residual, reverse=reverse))[0]
    assert len(found) == 7 + bool(changed)


def test_a_table_whose_base_is_empty_is_its_delta(offline: FollowedBucket, tmp_path: Path) -> None:
    empty = offline.cut_base(tmp_path / "bases", 10)
    assert read(cursor_of(offline, empty, Asked())) == []
    offline.upsert_batch(rows_of(range(25)))
    assert read(cursor_of(offline, empty, Asked()), rows=7) == list(range(25))
    assert read(cursor_of(offline, empty, Asked(reverse=True)), rows=7) == list(range(24, -1, -1))


def test_batches_without_changes_are_those_of_the_file(offline: FollowedBucket, base: ColumnarBase) -> None:
    offline.upsert_batch(rows_of([105]))
    cursor = cursor_of(offline, base, Asked())
    for number in range(10):
        batch = cursor.next_batch(1000, ROOM)
        assert batch is not None
        if number == 1:
            assert batch.num_rows == 11
            assert cursor.message is None
        else:
            assert cursor.message is not None
            assert cursor.message.data.address == base.message(number).address
            assert cursor.message == BatchMessage.of(batch)
            assert batch.column("w").buffers()[2].address == base.batch(number).column("w").buffers()[2].address
    assert cursor.next_batch(1000, ROOM) is None
    assert cursor.message is None


@pytest.mark.parametrize(
    "asked",
    [
        Asked(columns=["k"]),
        Asked(columns=["w", "v", "k"]),
        Asked(reverse=True),
        Asked(residual=bind(col("v") > 0, SMALL.schema.arrow)),
    ],
)
def test_what_is_not_a_whole_batch_has_no_message(offline: FollowedBucket, base: ColumnarBase, asked: Asked) -> None:
    cursor = cursor_of(offline, base, asked)
    assert cursor.next_batch(1000, ROOM) is not None
    assert cursor.message is None


def test_a_batch_whose_rows_all_match_is_sent_as_it_is_in_the_file(offline: FollowedBucket, base: ColumnarBase) -> None:
    cursor = cursor_of(offline, base, Asked(residual=bind(col("v") >= 0, SMALL.schema.arrow)))
    batch = cursor.next_batch(1000, ROOM)
    assert batch is not None
    assert cursor.message == BatchMessage.of(batch)


def test_half_a_batch_and_a_batch_of_an_older_schema_have_no_message(
    offline: FollowedBucket, base: ColumnarBase
) -> None:
    cursor = cursor_of(offline, base, Asked())
    for _ in range(2):
        assert cursor.next_batch(5, ROOM) is not None
        assert cursor.message is None
    offline.alter(SMALL.add_columns(pa.schema([pa.field("n", pa.int32())])))
    cursor = cursor_of(offline, base, Asked())
    batch = cursor.next_batch(1000, ROOM)
    assert batch is not None
    assert batch.column("n").null_count == 10
    assert cursor.message is None


@pytest.mark.parametrize("reverse", [False, True])
def test_batches_that_zone_maps_rule_out_are_not_read(
    offline: FollowedBucket, base: ColumnarBase, reverse: bool
) -> None:
    asked = Asked(residual=bind(col("v").between(500, 520), SMALL.schema.arrow), reverse=reverse)
    cursor = cursor_of(offline, base, asked)
    assert sorted(read(cursor)) == [500, 510, 520]
    assert cursor.rows_scanned == 10
    # Changes in batches that are ruled out: one row begins to match, one is replaced, one is deleted.
    offline.upsert_batch(rows_of([250], times=2))
    offline.upsert_batch(rows_of([800], times=2))
    offline.delete({"k": 810}, {"k": 510})
    for rows in (1, 2, 1000):
        cursor = cursor_of(offline, base, asked)
        found = read(cursor, rows)
        assert found == sorted([250, 500, 520], reverse=reverse)
        assert cursor.rows_scanned == 11


def test_no_row_is_missed_behind_any_last_key(offline: FollowedBucket, base: ColumnarBase) -> None:
    """A scan that continues elsewhere from any key returns the rest, also after batches that are ruled out."""
    offline.upsert_batch(rows_of([3, 250, 255, 805], times=2))
    offline.delete(*({"k": key} for key in range(300, 400, 10)))
    for residual in (None, bind(col("v").between(490, 520), SMALL.schema.arrow)):
        for reverse in (False, True):
            whole = Asked(residual=residual, reverse=reverse)
            kept = [row[0] for row in expected(offline, whole)[0]]
            cursor = cursor_of(offline, base, whole)
            found: list[int] = []
            while (batch := cursor.next_batch(2, ROOM)) is not None:
                found += batch.column("k").to_pylist()
                assert cursor.last_key is not None
                rest = Asked(None, residual, KeyRange().after(cursor.last_key, reverse=reverse), reverse)
                assert found + read(cursor_of(offline, base, rest)) == kept


def test_the_key_after_a_row_is_its_own_though_deleted_ones_follow(offline: FollowedBucket, base: ColumnarBase) -> None:
    """Who merges buckets reads single rows and takes the key for the row's."""
    offline.delete({"k": 10}, {"k": 30}, {"k": 31})
    cursor = cursor_of(offline, base, Asked())
    keys = []
    while (rows := cursor.next_rows(1, 1)) is not None:
        if len(rows):
            assert cursor.last_key is not None
            keys.append(int.from_bytes(cursor.last_key, "big") - (1 << 63))
            assert KeyedRepresentation(offline.codec.schema).decode(rows).column("k").to_pylist() == keys[-1:]
    assert keys == [key for key in range(0, 1000, 10) if key not in (10, 30)]


def test_a_damaged_row_of_the_delta_is_data_loss(base: ColumnarBase, offline: FollowedBucket) -> None:
    (key,) = offline.keys.encode(rows_of([100]))[0].to_pylist()
    net = MergedDelta(pa.array([key], pa.binary()), pa.array([b"\x01\x00junk"], pa.binary()))
    arguments: Any = (base, lambda: net, offline.codec, None, None, KeyRange())
    cursor = BaseCursor(*arguments, reverse=False, location="bucket 7")
    assert cursor.next_batch(1000, ROOM) is not None
    with pytest.raises(DataLoss, match="bucket 7"):
        cursor.next_batch(1000, ROOM)


def test_nothing_is_asked_of_the_delta_before_the_first_read(base: ColumnarBase, offline: FollowedBucket) -> None:
    asked: list[int] = []

    def net() -> MergedDelta:
        asked.append(1)
        return EMPTY_DELTA

    arguments: Any = (base, net, offline.codec, None, None, KeyRange())
    cursor = BaseCursor(*arguments, reverse=False, location="")
    assert not asked
    cursor.next_batch(10, ROOM)
    cursor.next_batch(10, ROOM)
    assert asked == [1]
    cursor.close()
    cursor.close()
    assert cursor.next_batch(10, ROOM) is None


def test_steps_keep_to_about_their_bytes(offline: FollowedBucket, base: ColumnarBase) -> None:
    offline.upsert_batch(rows_of(range(2000, 4000)))
    for reverse in (False, True):
        cursor = cursor_of(offline, base, Asked(reverse=reverse))
        while (batch := cursor.next_batch(1000, 100)) is not None:
            assert 1 <= batch.num_rows <= 6
            # Of base and delta so many each, and offsets have one more than there are rows.
            assert batch.nbytes <= 2 * 100 + 50 or batch.num_rows == 1


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("start", "end"), [(455, 545), (515, 715), (45, 505), (13, 48), (613, 648), (130, 131)])
def test_a_range_may_begin_and_end_in_batches_that_are_ruled_out(
    offline: FollowedBucket, base: ColumnarBase, start: int, end: int, reverse: bool
) -> None:
    residual = bind(col("v").between(500, 520), SMALL.schema.arrow)
    ends = offline.keys.encode(rows_of([start, end]))[0].to_pylist()
    asked = Asked(None, residual, KeyRange(*ends), reverse)
    for written in ([], [20, 47, 460, 640]):
        if written:
            offline.upsert_batch(rows_of(written, times=25))
        kept, _ = expected(offline, asked)
        cursor = cursor_of(offline, base, asked)
        assert read(cursor) == [row[0] for row in kept]
        assert cursor.rows_scanned <= 10 + len(written)


@pytest.mark.parametrize("reverse", [False, True])
def test_one_step_decodes_some_thousands_of_the_rows_written_since_and_no_more(tmp_path: Path, reverse: bool) -> None:
    definition = define(pa.schema([("k", pa.int64()), ("v", pa.int64())]))

    def rows(keys: range) -> pa.RecordBatch:
        return pa.record_batch([pa.array(keys), pa.array(keys)], schema=definition.schema.arrow)

    with followed(tmp_path, definition) as offline:
        offline.upsert_batch(rows(range(0, 40_000, 100)))
        base = offline.cut_base(tmp_path / "bases", 32_768)
        offline.upsert_batch(rows(range(20_001, 40_001)))
        with closing(cursor_of(offline, base, Asked(reverse=reverse))) as cursor:
            steps = list(iter(lambda: cursor.next_batch(32_768, 2 << 20), None))
        found = pa.Table.from_batches(steps).column("k").to_pylist()
        assert found == sorted({*range(0, 40_000, 100), *range(20_001, 40_001)}, reverse=reverse)
        assert max(step.num_rows for step in steps) <= 8192 + 400
