"""The verdict on an error of a scan, as a table; and the progress of a scan over several attempts."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import (
    ConnectionFailed,
    DataLoss,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    InvalidResumeToken,
    PermissionDenied,
    ProtocolViolation,
    Resume,
    Resumption,
    ScanCancelled,
    ScanKvError,
    ScanSpec,
    ScanStalled,
    ScanTooLong,
    ServerDraining,
    SnapshotLost,
    TableNotFound,
    TlsHandshakeFailed,
    TooManyScans,
    Unauthenticated,
    Unavailable,
)
from aio_client._scan.progress import ScanProgress
from aio_client._scan.protocol import EndedWithoutTrailer
from aio_client._scan.resume import Verdict, verdict
from scankv.model.changes.log_positions import LogSpec, StartFrom
from tests.unit.client.messages import (
    LOG_OFFSETS,
    chunks,
    header,
    heartbeat,
    received,
    response,
    trailer,
)

if TYPE_CHECKING:
    from scankv.v1.scan_pb2 import ScanChunk, ScanHeader, ScanHeartbeat, ScanKvResponse, ScanTrailer

BROKEN = [Unavailable]
CUT = [DeadlineExceeded, ScanStalled, ScanTooLong, ServerDraining, TooManyScans, EndedWithoutTrailer]
FATAL = [
    DataLoss,
    ScanCancelled,
    SnapshotLost,
    TableNotFound,
    InvalidRequest,
    InvalidResumeToken,
    ProtocolViolation,
    InternalError,
    TlsHandshakeFailed,
    Unauthenticated,
    PermissionDenied,
]

LIVE = ScanSpec("a.b")
LIVE_NEVER = ScanSpec("a.b", resume=Resume.NEVER)
LATEST = ScanSpec("a.b", resume=Resume.LATEST)
PINNED = ScanSpec("a.b", snapshot_id="s")
PINNED_LATEST = ScanSpec("a.b", snapshot_id="s", resume=Resume.LATEST)
PINNED_NEVER = ScanSpec("a.b", snapshot_id="s", resume=Resume.NEVER)
FROM_TOKEN = ScanSpec("a.b", resume_token=b"t")
FROM_TOKEN_NEVER = ScanSpec("a.b", resume_token=b"t", resume=Resume.NEVER)
FROM_OFFSETS = ScanSpec("a.b", log=LogSpec(start=StartFrom.offsets({0: 3})))
SPECS = [LIVE, LIVE_NEVER, LATEST, PINNED, PINNED_LATEST, PINNED_NEVER, FROM_TOKEN, FROM_TOKEN_NEVER]

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def decided(error: type[ScanKvError], spec: ScanSpec, *, started: bool = True, complete: bool = False) -> Verdict:
    return verdict(error("what happened"), spec, started=started, complete=complete)


@pytest.mark.parametrize("error", FATAL)
@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("complete", [False, True])
def test_what_is_wrong_in_itself_is_always_raised(
    error: type[ScanKvError], spec: ScanSpec, started: bool, complete: bool
) -> None:
    assert decided(error, spec, started=started, complete=complete) is Verdict.RAISE


@pytest.mark.parametrize("error", [*BROKEN, *CUT])
@pytest.mark.parametrize("spec", [PINNED, PINNED_LATEST, LATEST], ids=str)
def test_a_cut_is_gone_on_from_where_it_was_asked_for_or_is_exact(error: type[ScanKvError], spec: ScanSpec) -> None:
    assert decided(error, spec) is Verdict.RETRY


@pytest.mark.parametrize("spec", [LIVE, LIVE_NEVER, PINNED_NEVER, FROM_TOKEN, FROM_TOKEN_NEVER], ids=str)
def test_a_cut_is_raised_where_nobody_asked(spec: ScanSpec) -> None:
    assert {decided(error, spec) for error in CUT} == {Verdict.RAISE}
    assert {decided(error, spec) for error in BROKEN} == {Verdict.INTERRUPTED}


@pytest.mark.parametrize("error", [*BROKEN, *CUT])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_cut_of_nothing_is_the_end(error: type[ScanKvError], spec: ScanSpec) -> None:
    assert decided(error, spec, complete=True) is Verdict.COMPLETE


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_full_server_is_always_asked_again_at_the_opening(spec: ScanSpec) -> None:
    assert decided(TooManyScans, spec, started=False) is Verdict.RETRY


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_server_that_says_when_to_try_again_is_asked_again_at_the_opening(spec: ScanSpec) -> None:
    error = Unavailable("the worker is started again", retry_after=0.1)
    assert verdict(error, spec, started=False, complete=False) is Verdict.RETRY


@pytest.mark.parametrize("error", [*BROKEN, *CUT])
def test_only_a_scan_that_knows_where_it_stands_waits_for_a_server(error: type[ScanKvError]) -> None:
    if error is not TooManyScans:
        for spec in (LIVE, LIVE_NEVER, LATEST, PINNED_NEVER, FROM_TOKEN_NEVER):
            assert decided(error, spec, started=False) is Verdict.RAISE
    for spec in (PINNED, PINNED_LATEST, FROM_TOKEN, FROM_OFFSETS):
        assert decided(error, spec, started=False) is Verdict.RETRY


def test_every_error_of_the_connection_is_in_the_tables() -> None:
    decided_here = {*BROKEN, *CUT, *FATAL}
    # ScanInterrupted is made only after a verdict.
    assert {cls.__name__ for cls in ConnectionFailed.__subclasses__()} - {"ScanInterrupted"} <= {
        cls.__name__ for cls in decided_here
    }


def progress(spec: ScanSpec = PINNED) -> ScanProgress:
    made = ScanProgress(spec, now=lambda: NOW)
    made.begin_attempt()
    return made


def parts(*messages: ScanHeader | ScanChunk | ScanHeartbeat | ScanTrailer) -> list[ScanKvResponse]:
    return [response(message) for message in messages]


def resumptions(scan: ScanProgress) -> tuple[Resumption, ...]:
    """Returns the resumptions. A call, because mypy would assume that the property has not changed."""
    return scan.resumptions


def test_progress_is_the_sum_of_the_attempts() -> None:
    scan, sent = progress(), chunks(6)
    for part in parts(header(), *sent[:2], heartbeat(b"far", 40)):
        scan.book(received(part))
    assert (scan.rows, scan.chunks, scan.rows_scanned, scan.attempts, scan.token) == (10, 2, 40, 1, b"far")
    scan.cut(Unavailable("away"))
    scan.begin_attempt()
    assert (scan.rows, scan.chunks, scan.rows_scanned, scan.attempts, scan.token) == (10, 2, 40, 2, b"far")
    rest = chunks(6, first=2)
    for part in parts(header(resumed_from=LOG_OFFSETS), *rest, trailer(rest)):
        scan.book(received(part))
    scan.close()
    # The trailer counts one row more than was sent.
    assert (scan.rows, scan.chunks, scan.rows_scanned, scan.attempts) == (30, 6, 61, 2)
    assert scan.bytes == sum(len(each.record_batch) for each in (*sent[:2], *rest))
    assert scan.complete


def test_an_attempt_may_only_send_what_is_left_of_the_limit() -> None:
    scan = progress(ScanSpec("a.b", snapshot_id="s", limit=12))
    for part in parts(header(), *chunks(2)):
        scan.book(received(part))
    assert not scan.complete
    scan.begin_attempt()
    scan.book(received(header(resumed_from=LOG_OFFSETS)))
    with pytest.raises(ProtocolViolation, match="expected at most 2 rows, got 5"):
        scan.book(received(chunks(3, first=2)[0]))
    assert (scan.rows, scan.token) == (10, b"after 9")


def test_a_resumption_says_when_where_why_and_between_which_views(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aio_client")
    scan, newer = progress(LATEST), {0: 8, 1: 0, 2: 12}
    scan.book(received(header()))
    scan.book(received(chunks(1)[0]))
    first = Unavailable("away")
    scan.cut(first)
    scan.cut(TooManyScans("full"))
    scan.begin_attempt()
    assert resumptions(scan) == ()
    scan.book(received(header(log_offsets=newer, resumed_from=LOG_OFFSETS)))
    (resumption,) = resumptions(scan)
    assert (resumption.resumed_at, resumption.rows, resumption.cause) == (NOW, 5, first)
    assert (resumption.from_log_offsets, resumption.to_log_offsets) == (LOG_OFFSETS, newer)
    assert [record.getMessage() for record in caplog.records] == [
        "the scan of a.b resumes after 5 rows: UNAVAILABLE",
    ]


def test_a_scan_that_begins_anew_before_its_first_chunk_is_resumed_as_well() -> None:
    scan, newer = progress(LATEST), {0: 8, 1: 0, 2: 12}
    scan.book(received(header()))
    scan.cut(ScanTooLong("too long"))
    scan.begin_attempt()
    scan.book(received(header(log_offsets=newer)))
    (resumption,) = scan.resumptions
    assert (resumption.rows, resumption.from_log_offsets, resumption.to_log_offsets) == (0, LOG_OFFSETS, newer)


def test_an_opening_that_takes_several_attempts_is_no_resumption() -> None:
    scan = progress(LATEST)
    scan.cut(TooManyScans("full"))
    scan.begin_attempt()
    scan.book(received(header()))
    assert scan.resumptions == ()


def test_a_scan_from_a_token_begins_with_a_resumption_without_a_cause() -> None:
    scan = progress(ScanSpec("a.b", resume_token=b"t"))
    assert scan.token == b"t"
    scan.book(received(header(resumed_from={0: 1, 1: 0, 2: 0})))
    (resumption,) = scan.resumptions
    assert (resumption.rows, resumption.cause) == (0, None)
    assert (resumption.from_log_offsets, resumption.to_log_offsets) == ({0: 1, 1: 0, 2: 0}, LOG_OFFSETS)


def test_a_stream_of_changes_knows_its_offsets_while_it_reconnects() -> None:
    scan = progress(ScanSpec("a.b", log=LogSpec(start=StartFrom.FULL, row_kind=True)))
    opened, later = header(), heartbeat(b"far", 40)
    opened.full = later.scanning = True
    later.next_offsets.update({0: 9, 1: 0, 2: 12})
    for part in parts(opened, later):
        scan.book(received(part))
    scan.cut(Unavailable("away"))
    scan.begin_attempt()
    assert (scan.next_offsets, scan.scanning) == ({0: 9, 1: 0, 2: 12}, True)


@pytest.mark.parametrize("spec", [PINNED, LATEST], ids=str)
def test_another_schema_after_a_cut_is_refused(spec: ScanSpec) -> None:
    scan = progress(spec)
    scan.book(received(header()))
    scan.begin_attempt()
    with pytest.raises(ProtocolViolation, match="expected the schema of the rows before the cut, got another"):
        scan.book(received(header(pa.schema([("id", pa.int32())]))))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"log_offsets": {0: 8, 1: 0, 2: 12}}, "the log offsets of the pinned snapshot, got others"),
        ({"resumed_from": {0: 8, 1: 0, 2: 12}}, "the log offsets of the pinned snapshot, got others"),
        ({"table_incarnation": "table-2"}, "the table of the pinned snapshot, got another one"),
    ],
    ids=str,
)
def test_another_view_of_a_pinned_snapshot_is_refused(changed: dict[str, object], message: str) -> None:
    scan = progress(PINNED)
    scan.book(received(header()))
    scan.book(received(chunks(1)[0]))
    scan.begin_attempt()
    with pytest.raises(ProtocolViolation, match=message):
        scan.book(received(header(**{"resumed_from": LOG_OFFSETS, **changed})))  # type: ignore[arg-type]
