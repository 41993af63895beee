"""When the next transaction of a job may begin, given what each worker process of a server remembers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scankv.model.errors import TableRecreated
from streaming_server.engine.transactions.committed_transactions import CommittedTransactions
from streaming_server.engine.transactions.jobs import JobMemory, JobRequest, check_job, recall_job
from streaming_server.storage.transactions.decisions import CommittedTransaction

DAY = 86_400
STEP = JobRequest(id="job:7", table="a.b", follows="job:6")
OWNER, OTHER = JobMemory(incarnation="now"), JobMemory()


def is_refused(step: JobRequest, *memories: JobMemory) -> bool:
    try:
        check_job(step, memories)
    except TableRecreated:
        return True
    return False


@pytest.mark.parametrize(
    ("other", "refuses"),
    [
        # No one remembers a transaction of the job, so the table was never written by it, or by another server.
        (OTHER, True),
        # An earlier version has committed without naming the table.
        (JobMemory(knows_job=True), False),
        (JobMemory(followed="now", last="job:6", last_incarnation="now"), False),
        (JobMemory(followed="before", last="job:6"), True),
        (JobMemory(last="job:5"), True),
        (JobMemory(committed="now", last="job:7"), False),
        (JobMemory(committed="before", last="job:7"), True),
        # The checkpoint is older than the table.
        (JobMemory(last="job:10"), True),
    ],
)
def test_a_job_continues_if_no_worker_knows_that_the_table_lacks_rows(other: JobMemory, refuses: bool) -> None:
    assert is_refused(STEP, OWNER, other) is is_refused(STEP, other, OWNER) is refuses
    assert not is_refused(replace(STEP, accepted="now"), OWNER, other)
    assert is_refused(replace(STEP, accepted="before"), OWNER, other) is refuses


def test_a_job_of_which_nothing_is_remembered_continues_only_in_the_first_table_of_a_name() -> None:
    recreated = replace(OWNER, has_predecessor=True)
    # Ids without a number are forgotten after a time.
    unnumbered = JobRequest(id="later", table="a.b", follows="earlier")
    assert not is_refused(unnumbered, OWNER, OTHER)
    assert is_refused(unnumbered, recreated, OTHER)
    assert is_refused(STEP, recreated, OTHER)
    assert not is_refused(replace(STEP, accepted="now"), recreated, OTHER)
    assert not is_refused(replace(STEP, id="job:0", follows=""), recreated, OTHER)
    assert not is_refused(STEP, replace(recreated, followed="now"))


def test_the_first_transaction_of_a_job_is_refused_if_it_was_committed_to_a_dropped_table() -> None:
    assert is_refused(replace(STEP, follows=""), OWNER, JobMemory(committed="before", last="job:7"))


def test_the_last_transaction_is_the_one_with_the_greatest_number_that_the_table_has() -> None:
    with pytest.raises(TableRecreated) as caught:
        check_job(
            STEP,
            [
                replace(OWNER, last="job:5", last_incarnation="now"),
                JobMemory(last="job:10", last_incarnation="now"),
                JobMemory(last="job:9", last_incarnation="now"),
                JobMemory(last="job:11", last_incarnation="before"),
            ],
        )
    assert caught.value.details == {"table": "a.b", "incarnation": "now", "last": "job:10"}


def commit(number: int, **tables: str) -> CommittedTransaction:
    return CommittedTransaction(
        number=number,
        token=f"t{number}",
        id=f"job:{number}",
        micros=number,
        served_micros=0,
        rows=1,
        tables={name.replace("_", "."): incarnation for name, incarnation in tables.items()},
        log_offsets={},
    )


def test_the_last_commit_of_a_job_is_known_after_its_id_has_expired() -> None:
    known = CommittedTransactions(DAY, lambda *_: True)
    for number in (5, 6):
        known.add(commit(number, a_b="now"))
    known.forget(100 * DAY * 1_000_000)
    assert recall_job(STEP, known, None) == JobMemory(
        followed="now", knows_job=True, last="job:6", last_incarnation="now"
    )
    assert recall_job(replace(STEP, follows="job:5"), known, None) == JobMemory(
        knows_job=True, last="job:6", last_incarnation="now"
    )
    assert recall_job(replace(STEP, table="c.d"), known, None) == JobMemory(knows_job=True)


def test_a_commit_without_rows_of_an_earlier_version_says_nothing_about_a_table() -> None:
    known = CommittedTransactions(DAY, lambda *_: True)
    known.add(commit(6))
    assert recall_job(STEP, known, None) == JobMemory(knows_job=True)
