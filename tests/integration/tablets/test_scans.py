"""Scans of tables with tablets return the rows, order, totals and errors of other tables, also if they resume."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import google_crc32c
import pyarrow as pa
import pytest

from aio_client import col, sync
from scankv.model.changes.chunk_checksum import chunk_crc32c
from scankv.model.expressions.wire import to_proto
from scankv.model.keys.key_codec import KeyCodec
from scankv.v1 import lookup_pb2, scan_pb2
from tests.support.tablet_twins import BUCKETS, TabletTwins
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from scankv.model.expressions import Predicate
    from tests.support.wire import Wire

pytestmark = pytest.mark.timeout(120)

SCHEMA = pa.schema(
    [
        pa.field("team", pa.string(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        ("number", pa.int64()),
        ("text", pa.string()),
    ]
)
ROWS = 2000
KEYS = KeyCodec([pa.string(), pa.int64()], ["team", "id"])


def rows(first: int = 0, count: int = ROWS) -> pa.RecordBatch:
    numbers = range(first, first + count)
    columns = [[f"team {n % 17}" for n in numbers], [n * 7919 % 5003 - 2000 for n in numbers], numbers]
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, SCHEMA.types[:3], strict=True)]
    return pa.RecordBatch.from_arrays([*arrays, pa.array([f"text {n}" * 9 for n in numbers])], schema=SCHEMA)


@pytest.fixture(scope="module")
def settings() -> tuple[str, ...]:
    # Rows that have expired stay, so that a scan which began before can return them.
    return ("--set", "sweep_seconds=3600")


@pytest.fixture(scope="module")
def twins(client: sync.Client, wire: Wire) -> TabletTwins:
    twins = TabletTwins.create(client, wire, "scans.twins", SCHEMA, ["team", "id"], indexes=[["number"]])
    twins.upsert(rows())
    return twins


@dataclass(frozen=True)
class CheckedStream:
    """A stream whose totals and checksums are right."""

    header: scan_pb2.ScanHeader
    chunks: list[scan_pb2.ScanChunk]
    trailer: scan_pb2.ScanTrailer

    @classmethod
    def read(cls, wire: Wire, request: scan_pb2.ScanKvRequest) -> CheckedStream:
        messages = list(wire.scans.ScanKv(request, timeout=60))
        header, trailer = messages[0].header, messages[-1].trailer
        chunks = [each.chunk for each in messages[1:-1] if each.HasField("chunk")]
        checksum = 0
        for chunk in chunks:
            checksum = chunk_crc32c(checksum, google_crc32c.value(chunk.record_batch))
            assert chunk.crc32c == checksum
            assert 0 < chunk.row_count <= (request.chunk.max_rows or 8192)
        assert trailer.crc32c == checksum
        assert (trailer.chunks, trailer.rows_returned) == (len(chunks), sum(each.row_count for each in chunks))
        assert trailer.bytes_returned == sum(len(each.record_batch) for each in chunks)
        return cls(header, chunks, trailer)

    def rows(self) -> pa.Table:
        schema = pa.ipc.read_schema(pa.py_buffer(self.header.arrow_schema))
        batches = [pa.ipc.read_record_batch(pa.py_buffer(each.record_batch), schema) for each in self.chunks]
        for batch, chunk in zip(batches, self.chunks, strict=True):
            batch.validate(full=True)
            assert batch.num_rows == chunk.row_count
        return pa.Table.from_batches(batches, schema)

    def facts(self) -> dict[str, Any]:
        """Returns all but the rows that must be equal for both tables."""
        return {
            "schema": self.header.arrow_schema,
            "schema_id": self.header.schema_id,
            "offsets": dict(self.header.log_offsets),
            "estimate": self.header.row_estimate if self.header.HasField("row_estimate") else None,
            "left": self.header.limit_left if self.header.HasField("limit_left") else None,
            "unchanged": self.header.unchanged,
            "version": bool(self.header.version),
            "buckets": list(self.trailer.buckets),
            "rows": self.trailer.rows_returned,
        }


def key_range(first: tuple[str, int], last: tuple[str, int]) -> scan_pb2.KeyRange:
    return scan_pb2.KeyRange(start=KEYS.encode_one(first), end=KEYS.encode_one(last))


SCANS: dict[str, dict[str, Any]] = {
    "all": {},
    "reverse": {"reverse": True},
    "some columns": {"columns": scan_pb2.ColumnNames(names=["text", "team"])},
    "no columns": {"columns": scan_pb2.ColumnNames()},
    "some buckets": {"buckets": [6, 0, 3]},
    "buckets of one tablet": {"buckets": [BUCKETS - 1]},
    "a bucket of each tablet": {"buckets": [0, 3, BUCKETS - 1], "columns": scan_pb2.ColumnNames(names=["text"])},
    "matching rows": {"where": to_proto((col("number") > 100) & (col("text") < "text 7"))},
    "rows by an index": {"where": to_proto(col("number").is_in([5, 6, 700, 1999, 5000]))},
    "a key": {"where": to_proto((col("team") == "team 3") & (col("id") == -1997))},
    "no rows": {"where": to_proto(col("number") > 5000)},
    "a key range": {"key_range": key_range(("team 3", 5), ("team 8", -100))},
    "an empty key range": {"key_range": key_range(("team 8", 5), ("team 3", 5))},
    "latest": {"isolation": scan_pb2.ISOLATION_READ_LATEST},
    "RocksDB": {"read_path": scan_pb2.READ_PATH_ROCKSDB},
    "by owner": {"consistency": scan_pb2.CONSISTENCY_OWNER},
    "some buckets by owner": {"consistency": scan_pb2.CONSISTENCY_OWNER, "buckets": [6, 0, 3], "reverse": True},
}
REFUSED: dict[str, dict[str, Any]] = {
    "an unknown column": {"columns": scan_pb2.ColumnNames(names=["nothing"])},
    "an unknown column in the predicate": {"where": to_proto(col("nothing") > 1)},
    "an unknown bucket": {"buckets": [BUCKETS]},
    "a bucket twice": {"buckets": [1, 2, 1]},
    "a damaged token": {"resume_token": b"damaged"},
    "a token and a version": {"resume_token": b"x", "if_changed_since": b"x"},
    "the latest and a version": {"isolation": scan_pb2.ISOLATION_READ_LATEST, "if_changed_since": b"x"},
    "no buckets": {"no_buckets": True},
    "large chunks": {"chunk": scan_pb2.ChunkBounds(max_rows=100_000)},
    "an unknown read path": {"read_path": 9},
    "an unknown consistency": {"consistency": 9},
    "a time of expiry": {"expired_at_micros": 5},
    "an empty snapshot": {"snapshot": scan_pb2.PinnedSnapshot()},
}


@pytest.mark.parametrize("ordered", [False, True], ids=["by bucket", "ordered"])
@pytest.mark.parametrize("asked", SCANS.values(), ids=SCANS.keys())
def test_scans_are_equal(twins: TabletTwins, asked: dict[str, Any], ordered: bool) -> None:
    def read(name: str) -> CheckedStream:
        return CheckedStream.read(twins.wire, scan_pb2.ScanKvRequest(table=name, ordered=ordered, **asked))

    plain, divided = twins.both(read)
    assert divided.facts() == plain.facts()
    assert divided.rows().equals(plain.rows())


@pytest.mark.parametrize("ordered", [False, True], ids=["by bucket", "ordered"])
@pytest.mark.parametrize("asked", {**SCANS, **REFUSED}.values(), ids={**SCANS, **REFUSED}.keys())
def test_explanations_are_equal(twins: TabletTwins, asked: dict[str, Any], ordered: bool) -> None:
    plain, divided = twins.both(
        lambda name: twins.wire.scans.ExplainScan(
            scan_pb2.ScanKvRequest(table=name, ordered=ordered, limit=asked.get("limit", 50), **asked), timeout=60
        )
    )
    if isinstance(divided, scan_pb2.ExplainScanResponse):
        divided.ClearField("instants")  # The other table has one owner.
        for each in (plain, divided):
            each.index_keys = min(each.index_keys, 1)  # It follows from estimates of each tablet.
    assert divided == plain


@pytest.mark.parametrize("by", ["number", "text", "nothing"])
@pytest.mark.parametrize(
    "where", [None, col("number") > 50, col("team") == "team 3"], ids=["all", "by index", "by key"]
)
def test_explanations_of_top_n_are_equal_and_name_what_is_read(
    twins: TabletTwins, by: str, where: Predicate | None
) -> None:
    condition = None if where is None else to_proto(where)

    def explain(name: str) -> scan_pb2.ExplainScanResponse:
        request = lookup_pb2.ExplainTopNRequest(table=name, by=by, n=5, where=condition)
        return twins.wire.lookups.ExplainTopN(request, timeout=60)

    plain, divided = twins.both(explain)
    if by != "nothing":
        for each in (plain, divided):
            # Whether a bucket of a few rows has been considered for a base, each worker decides at its time.
            each.read_path_reason = each.read_path_reason.partition(":")[0]
            each.index_keys = min(each.index_keys, 1)
    assert divided == plain
    if by != "nothing":
        request = lookup_pb2.TopNRequest(table=twins.names[1], by=by, n=5, where=condition)
        assert list(plain.index) * plain.index_order == list(twins.wire.lookups.TopN(request).index)


@pytest.mark.parametrize("asked", REFUSED.values(), ids=REFUSED.keys())
def test_refusals_are_equal(twins: TabletTwins, asked: dict[str, Any]) -> None:
    plain, divided = twins.both(
        lambda name: CheckedStream.read(twins.wire, scan_pb2.ScanKvRequest(table=name, **asked))
    )
    assert divided == plain
    assert isinstance(plain, tuple)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("limit", [0, 1, 700, ROWS, ROWS + 1])
def test_limits_of_ordered_scans_are_equal(twins: TabletTwins, limit: int, reverse: bool) -> None:
    asked: dict[str, Any] = {
        "ordered": True,
        "reverse": reverse,
        "limit": limit,
        "columns": scan_pb2.ColumnNames(names=["number"]),
    }
    plain, divided = twins.both(
        lambda name: CheckedStream.read(twins.wire, scan_pb2.ScanKvRequest(table=name, **asked))
    )
    assert divided.facts() == plain.facts()
    assert divided.rows().equals(plain.rows())


def resumed(wire: Wire, request: scan_pb2.ScanKvRequest, token: bytes) -> CheckedStream:
    again = scan_pb2.ScanKvRequest()
    again.CopyFrom(request)
    again.resume_token = token
    return CheckedStream.read(wire, again)


@pytest.mark.represented_by("two_workers-limited-by bucket", "two_workers-reverse-by bucket")
@pytest.mark.parametrize("ordered", [False, True], ids=["by bucket", "ordered"])
@pytest.mark.parametrize(("reverse", "limit"), [(False, 1500), (True, None)], ids=["limited", "reverse"])
def test_a_scan_resumes_after_each_chunk(twins: TabletTwins, ordered: bool, reverse: bool, limit: int | None) -> None:
    request = scan_pb2.ScanKvRequest(
        table=twins.names[1], ordered=ordered, reverse=reverse, limit=limit, chunk=scan_pb2.ChunkBounds(max_rows=300)
    )
    first = CheckedStream.read(twins.wire, request)
    everything, before = first.rows(), 0
    assert everything.num_rows == (limit or ROWS)
    for number, chunk in enumerate(first.chunks):
        before += chunk.row_count
        rest = resumed(twins.wire, request, chunk.resume_token)
        assert rest.rows().equals(everything.slice(before))
        assert dict(rest.header.resumed_from.log_offsets) == dict(first.header.log_offsets)
        assert rest.header.resumed_from.view_micros == first.header.view_micros
        assert list(rest.trailer.buckets) == list(range(BUCKETS))
        if limit is not None:
            assert rest.header.limit_left == limit - before
        if number % 4 == 1 and rest.chunks:
            token = rest.chunks[-1].resume_token
            last = resumed(twins.wire, request, token)
            assert last.rows().num_rows == 0
            middle = len(rest.chunks) // 2
            again = resumed(twins.wire, request, rest.chunks[middle].resume_token)
            skipped = sum(each.row_count for each in rest.chunks[: middle + 1])
            assert again.rows().equals(everything.slice(before + skipped))


@pytest.mark.parametrize(
    "other",
    [
        {"limit": 5},
        {"reverse": True},
        {"ordered": True},
        {"buckets": [0, 1, 2, 3, 4, 5]},
        {"columns": scan_pb2.ColumnNames(names=["number"])},
        {"where": to_proto(col("number") > 3)},
        {"key_range": scan_pb2.KeyRange(start=b"x")},
    ],
    ids=str,
)
@pytest.mark.parametrize("ordered", [False, True], ids=["by bucket", "ordered"])
def test_a_token_of_another_scan_is_refused(twins: TabletTwins, other: dict[str, Any], ordered: bool) -> None:
    def read(name: str) -> CheckedStream:
        request = scan_pb2.ScanKvRequest(table=name, ordered=ordered)
        token = CheckedStream.read(twins.wire, request).chunks[1].resume_token
        request.MergeFrom(scan_pb2.ScanKvRequest(**other))
        if ordered and "ordered" in other:
            request.ordered = False
        return resumed(twins.wire, request, token)

    plain, divided = twins.both(read)
    assert divided == plain
    assert divided[1] == "INVALID_RESUME_TOKEN"


@pytest.mark.parametrize("ordered", [False, True], ids=["by bucket", "ordered"])
def test_an_unchanged_scan_reads_nothing(twins: TabletTwins, ordered: bool) -> None:
    request = scan_pb2.ScanKvRequest(table=twins.names[1], ordered=ordered)
    first = CheckedStream.read(twins.wire, request)
    before = twins.wire.server().rows_scanned
    request.if_changed_since = first.header.version
    again = CheckedStream.read(twins.wire, request)
    assert (again.header.unchanged, again.header.version) == (True, first.header.version)
    assert again.header.arrow_schema == first.header.arrow_schema
    assert (again.chunks, list(again.trailer.buckets)) == ([], list(range(BUCKETS)))
    assert twins.wire.server().rows_scanned == before
    twins.upsert([{"team": "team 1", "id": -5000, "number": 7}])
    changed = CheckedStream.read(twins.wire, request)
    assert not changed.header.unchanged
    assert changed.header.version != first.header.version
    for table in twins:
        table.delete([{"team": "team 1", "id": -5000}])


@pytest.mark.breadth
def test_rows_that_expire_before_a_scan_resumes_are_in_all_parts_of_it(client: sync.Client, wire: Wire) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("us", "UTC"))])
    twins = TabletTwins.create(client, wire, "scans.expiry", schema, ["id"], ttl_column="at", ttl_seconds="6")
    now = datetime.now(UTC)
    twins.upsert([{"id": number, "at": now} for number in range(300)])
    requests = [
        scan_pb2.ScanKvRequest(table=name, ordered=ordered, chunk=scan_pb2.ChunkBounds(max_rows=20))
        for name in twins.names
        for ordered in (False, True)
    ]
    streams = [CheckedStream.read(wire, request) for request in requests]
    wait_until(lambda: [table.count() for table in twins] == [0, 0], "all rows have expired")
    for request, stream in zip(requests, streams, strict=True):
        assert stream.trailer.rows_returned == 300
        rest = resumed(wire, request, stream.chunks[2].resume_token)
        before = sum(each.row_count for each in stream.chunks[:3])
        assert rest.rows().equals(stream.rows().slice(before))


@pytest.mark.breadth
def test_scans_see_all_tablets_at_one_instant(twins: TabletTwins) -> None:
    name = twins.names[1]
    table = twins.client.table(name)
    first, second = (
        CheckedStream.read(twins.wire, scan_pb2.ScanKvRequest(table=name, buckets=[bucket])).rows().to_pylist()[0]
        for bucket in (BUCKETS - 1, 0)
    )
    stop = threading.Event()

    def write() -> None:
        for number in itertools.count(10_000):
            for row in (first, second):
                table.upsert([{**row, "number": number}])
            if stop.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen: set[int] = set()
        where = to_proto(col("number") >= 10_000)
        while len(seen) < 20:
            for ordered in (False, True):
                request = scan_pb2.ScanKvRequest(table=name, ordered=ordered, where=where)
                rows = CheckedStream.read(twins.wire, request).rows().to_pylist()
                found = {row["id"]: row["number"] for row in rows}
                numbers = [found.get(row["id"], 9_999) for row in (first, second)]
                assert numbers[0] - numbers[1] in (0, 1)
                seen.add(numbers[0])
    finally:
        stop.set()
        writer.join()
        twins.upsert([first, second])
