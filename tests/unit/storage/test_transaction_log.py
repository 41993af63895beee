"""The transaction log and staged writes: shorter if torn by a crash, and damage is detected."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from scankv.model.errors import DataLoss, Unavailable
from streaming_server.clock import ServerClock
from streaming_server.storage.files.frames import write_at
from streaming_server.storage.transactions.decisions import CommittedTransaction, Decision, Decisions
from streaming_server.storage.transactions.staging import (
    DELETE,
    UPSERT,
    PartFile,
    PieceFile,
    StagedRequest,
    StagingDirectory,
    load_parts,
    read_staged_request,
    read_staged_requests,
)
from streaming_server.storage.transactions.transaction_log import TransactionLog

if TYPE_CHECKING:
    from pathlib import Path

DECISION = Decision(
    number=0, token="t0", id="job:1", micros=5, served_micros=4, rows=7, tables={"a.b": "i"}, files=((0, 3), (2, 1))
)
COMMITTED = DECISION.to_committed({"a.b": {0: 17, 3: 2**50}})
REQUEST = StagedRequest(
    part="p",
    table="a.b",
    incarnation="i",
    action=UPSERT,
    rows=2,
    buckets={0: 1, 3: 1},
    schema_id=2,
    columns=("k", "v"),
    column_locks=("lock",),
)


def test_decisions_are_unfinished_until_they_are_done_over_restarts_and_rewriting(tmp_path: Path) -> None:
    decisions = Decisions(tmp_path, ServerClock())
    epoch = decisions.epoch
    for number in range(3):
        assert decisions.next_number() == number
        decisions.decide(replace(DECISION, number=number, token=f"t{number}"))
    decisions.record_done(replace(COMMITTED, token="t1"))
    decisions.flush()
    for _ in range(2):
        decisions.close()
        decisions = Decisions(tmp_path, ServerClock())
        assert list(decisions.unfinished.values()) == [DECISION, replace(DECISION, number=2, token="t2")]
        done = decisions.take_finished()
        assert done == [replace(COMMITTED, token="t1")]
        assert decisions.epoch == epoch
        decisions.rewrite(done)
    assert decisions.next_number() == 3
    decisions.record_done(COMMITTED)
    decisions.flush()
    decisions.record_done(replace(COMMITTED, token="t2"))
    decisions.flush()
    decisions.rewrite([])
    decisions.close()
    decisions = Decisions(tmp_path, ServerClock())
    assert (decisions.unfinished, decisions.take_finished(), decisions.epoch) == ({}, [], epoch)
    assert decisions.next_number() == 4, "numbers are not used again, however the log is shortened"
    decisions.close()
    assert len(list(tmp_path.iterdir())) == 2


def test_the_principal_of_a_transaction_stands_beside_what_version_0_1_0_reads(tmp_path: Path) -> None:
    kept = {
        kind: replace(DECISION, token=kind, principal="etl") for kind in ("decided", "prepared", "done", "given up")
    }
    decisions = Decisions(tmp_path, ServerClock())
    decisions.prepare(kept["prepared"])
    for kind in ("decided", "done", "given up"):
        decisions.decide(kept[kind])
    decisions.record_done(kept["done"].to_committed({}))
    decisions.record_applied(replace(kept["decided"], applied={"a.b": {0: 17}}))
    assert [each.principal for each in decisions.unwritten] == ["etl"]
    decisions.end(kept["given up"].to_committed({}))
    for _ in range(2):
        decisions.close()
        with closing(TransactionLog(tmp_path)) as log:
            records = [each for each in log.records if "log" not in each]
        assert all(each.pop("principal") == "etl" for each in records)
        assert not any("principal" in values for each in records for values in each.values())
        decisions = Decisions(tmp_path, ServerClock())
        finished = decisions.take_finished()
        again: list[Decision | CommittedTransaction] = [
            *decisions.unfinished.values(),
            *decisions.prepared.values(),
            *finished,
        ]
        assert [(each.token, each.principal) for each in again] == [(kind, "etl") for kind in kept]
        decisions.rewrite(finished)
    decisions.close()


def test_a_torn_record_is_none_and_a_missing_or_damaged_durable_one_is_data_loss(tmp_path: Path) -> None:
    log = TransactionLog(tmp_path)
    log.append({"n": 0}, sync=True)
    whole = log.size
    log.append({"n": 1}, sync=False)
    log.close()
    (file,) = tmp_path.glob("log-*[0-9]")
    data = file.read_bytes()
    for end in range(whole, len(data)):
        file.write_bytes(data[:end])
        log = TransactionLog(tmp_path)
        assert (log.records, log.size) == ([{"n": 0}], whole)
        log.close()
    for place in range(whole):
        file.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with pytest.raises(DataLoss, match="transaction log"):
            TransactionLog(tmp_path)
    file.write_bytes(data[: whole - 1])
    with pytest.raises(DataLoss):
        TransactionLog(tmp_path)


def test_after_a_failed_sync_nothing_more_is_decided_before_the_log_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decisions = Decisions(tmp_path, ServerClock())
    decisions.decide(DECISION)
    original = write_at

    def fails(path: Path, data: bytes, offset: int, *, sync: bool) -> None:
        original(path, data, offset, sync=False)
        if sync:
            raise OSError("input/output error")

    monkeypatch.setattr("streaming_server.storage.transactions.transaction_log.write_at", fails)
    assert not decisions.is_uncertain
    with pytest.raises(OSError, match="input/output"):
        decisions.decide(replace(DECISION, number=1, token="t1"))
    assert decisions.is_uncertain
    monkeypatch.undo()
    with pytest.raises(Unavailable, match="could not be synced, so no transaction"):
        decisions.decide(replace(DECISION, number=2, token="t2"))
    decisions.rewrite([])
    assert not decisions.is_uncertain
    decisions.decide(replace(DECISION, number=3, token="t3"))
    decisions.close()
    assert [*Decisions(tmp_path, ServerClock()).unfinished] == [DECISION.token, "t3"]


def test_a_part_is_loaded_as_it_was_staged_up_to_where_it_is_torn(tmp_path: Path) -> None:
    directory = StagingDirectory(tmp_path, "token")
    directory.create({"id": "job:1"})
    part = PartFile(directory.part_path(4), "p")
    sizes = []
    for number in range(3):
        part.append(replace(REQUEST, buckets={number: 1}), bytes([number]) * 100)
        sizes.append(part.size)
    part.sync()
    directory.sync()
    (loaded,) = directory.load_parts()
    assert (loaded.part, loaded.number, loaded.requests, loaded.rows, loaded.size) == ("p", 4, 3, 6, part.size)
    assert loaded.tables["a.b"].buckets == {0: 1, 1: 1, 2: 1}
    assert loaded.tables["a.b"].access == {(2, ("k", "v"), ("lock",))}
    found = list(read_staged_requests(part.path, 3))
    assert found == [(replace(REQUEST, buckets={n: 1}), bytes([n]) * 100) for n in range(3)]
    data = part.path.read_bytes()
    part.path.write_bytes(data[: sizes[1] + 7])
    (loaded,) = directory.load_parts()
    assert (loaded.requests, loaded.size) == (2, sizes[1])
    with pytest.raises(DataLoss, match="2 of 3 can be read"):
        list(read_staged_requests(part.path, 3))
    loaded.append(REQUEST, b"again")
    assert list(read_staged_requests(part.path, 3))[-1] == (REQUEST, b"again")
    directory.remove()
    assert directory.read_metadata() is None
    assert not directory.path.exists()


def test_the_pieces_of_a_request_are_given_in_its_place_and_all_of_them_or_none(tmp_path: Path) -> None:
    directory = StagingDirectory(tmp_path, "token")
    directory.create({})
    part = PartFile(directory.part_path(0), "p")
    part.append(REQUEST, b"before")
    torn = PieceFile(part, 1)
    for _ in range(5):
        torn.append(REQUEST, b"of a try that a crash has ended" * 10)
    # It is ignored, and the next attempt overwrites it.
    assert [loaded.requests for loaded in directory.load_parts()] == [1]
    made = [replace(REQUEST, action=DELETE, rows=3, buckets={number: 1, 7: 1}) for number in range(3)]
    pieces = PieceFile(part, 1)
    for number, piece in enumerate(made):
        pieces.append(piece, bytes([number]))
    request = pieces.finish(replace(REQUEST, action=DELETE, rows=0, buckets={}))
    part.append(request, b"")
    part.append(REQUEST, b"behind")
    (loaded,) = directory.load_parts()
    assert (loaded.requests, loaded.rows, loaded.piece_bytes) == (3, 2 + 9 + 2, pieces.size)
    assert loaded.tables["a.b"].buckets == {0: 3, 1: 1, 2: 1, 3: 2, 7: 3}
    assert read_staged_request(part.path, 1) == request
    expected = [(REQUEST, b"before"), *((piece, bytes([n])) for n, piece in enumerate(made)), (REQUEST, b"behind")]
    assert list(read_staged_requests(part.path, 3)) == expected
    (whole,) = load_parts([(part.path, 3)])
    assert (whole.rows, whole.tables["a.b"].buckets) == (loaded.rows, loaded.tables["a.b"].buckets)
    pieces.discard()
    with pytest.raises(DataLoss, match="0 of 3 can be read"):
        list(read_staged_requests(part.path, 3))
    with pytest.raises(DataLoss, match="request 3 cannot be read"):
        read_staged_request(part.path, 3)


def test_a_committed_transaction_knows_its_family(tmp_path: Path) -> None:
    assert [replace(COMMITTED, id=id_).family for id_ in ("a:b:7", "a", ":7", "")] == ["a:b", "", "", ""]
    assert CommittedTransaction.from_json(COMMITTED.to_json()) == COMMITTED
