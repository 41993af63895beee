"""How long commits are remembered."""

from __future__ import annotations

from streaming_server.engine.transactions.committed_transactions import UNNAMED_SECONDS, CommittedTransactions
from streaming_server.storage.transactions.decisions import CommittedTransaction

DAY = 86_400


def commit(number: int, id_: str, day: float = 0.0, table: str = "a.b") -> CommittedTransaction:
    # Commit times mean nothing here, because the clock was set in between.
    return CommittedTransaction(
        number=number,
        token=f"t{number}",
        id=id_,
        micros=1000 - number,
        served_micros=int(day * DAY * 1e6),
        rows=1,
        tables={table: "i"},
        log_offsets={},
    )


def test_ids_are_remembered_for_days_and_the_last_of_a_family_while_a_table_is_there() -> None:
    there = {"a.b"}
    known = CommittedTransactions(7 * DAY, lambda name, _: name in there)
    for number in range(4):
        known.add(commit(number, f"job:{number}", day=number))
    known.add(commit(4, "single", day=4))
    known.add(commit(5, "other:1", day=4, table="c.d"))
    known.forget(int(8.5 * DAY * 1e6))
    assert [known.find("", f"job:{number}") is not None for number in range(4)] == [False, False, True, True]
    assert known.find("t0", "") is None
    known.forget(int(100 * DAY * 1e6))
    assert [each.id for each in known] == ["job:3"]
    assert known.find("", "job:3") == commit(3, "job:3", day=3)
    assert known.find("", "single") is known.find("", "other:1") is known.find("", "") is None
    there.clear()
    known.forget(int(100 * DAY * 1e6))
    assert list(known) == []


def test_one_without_an_id_is_found_by_its_token_for_an_hour() -> None:
    known = CommittedTransactions(7 * DAY, lambda *_: True)
    known.add(commit(0, ""))
    known.forget(int((UNNAMED_SECONDS - 1) * 1e6))
    assert known.find("t0", "") == commit(0, "")
    known.forget(int((UNNAMED_SECONDS + 1) * 1e6))
    assert known.find("t0", "") is None
