"""When a columnar base is due: the reasons to build it, and the reasons not to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streaming_server.engine.bucket.base_record import BaseRecord
from streaming_server.engine.columnar.base_due import BaseLimits, BucketNow, why_not_due

LIMITS = BaseLimits(
    min_rows=1000,
    changed_share=0.1,
    max_age_seconds=60.0,
    max_write_amplification=20.0,
    total_delta_bytes=8 << 20,
    cpu_share=1.0,
)
BASED = BucketNow(
    eager=False,
    rows=5000,
    base_rows=5000,
    changes=501,
    delta_bytes=100,
    age_seconds=1.0,
    build_bytes=100_000,
    free_bytes=1 << 40,
)


def record(changed_bytes: int = 10_000, base_bytes: int = 100_000) -> BaseRecord:
    return BaseRecord(wanted=True, changed_bytes=changed_bytes, base_bytes=base_bytes)


def test_a_bucket_without_a_base_gets_one_when_it_has_the_rows_and_a_scan_has_asked() -> None:
    none = replace(BASED, rows=1000, base_rows=None, changes=0, delta_bytes=0, age_seconds=1e9)
    assert why_not_due(none, BaseRecord(wanted=True), LIMITS) == ""
    assert "no scan has asked" in why_not_due(none, BaseRecord(), LIMITS)
    assert "base_min_rows" in why_not_due(replace(none, rows=999), BaseRecord(wanted=True), LIMITS)
    eager = replace(none, rows=1, eager=True)
    assert why_not_due(eager, BaseRecord(), LIMITS) == ""
    assert why_not_due(replace(eager, rows=0), BaseRecord(), LIMITS) == "it has no rows"


def test_a_base_is_built_anew_for_many_changes_much_memory_or_age_and_else_not() -> None:
    few = replace(BASED, changes=500)
    assert why_not_due(BASED, record(), LIMITS) == ""
    assert why_not_due(few, record(), LIMITS) == "too little has changed since the last base was built"
    assert why_not_due(replace(few, delta_bytes=(1 << 20) + 1), record(), LIMITS) == ""
    assert why_not_due(replace(few, age_seconds=61), record(), LIMITS) == ""
    assert why_not_due(replace(BASED, rows=10), record(), LIMITS) == "", "a base that is there is kept near"


def test_no_base_is_built_anew_where_nothing_has_changed_or_nobody_scans() -> None:
    assert (
        why_not_due(replace(BASED, changes=0, age_seconds=1e9), record(), LIMITS)
        == "nothing has changed since the last base was built"
    )
    unread = replace(record(), wanted=False)
    assert "no scan has asked" in why_not_due(BASED, unread, LIMITS)
    assert why_not_due(replace(BASED, eager=True), unread, LIMITS) == ""


@pytest.mark.parametrize("base_rows", [5000, None], ids=["first", "after one that was let go"])
def test_not_more_is_written_than_so_many_times_the_changes_unless_the_base_is_old(base_rows: int | None) -> None:
    now = replace(BASED, base_rows=base_rows, delta_bytes=1 << 20)
    assert why_not_due(now, record(changed_bytes=5000), LIMITS) == ""
    assert "base_max_write_amplification" in why_not_due(now, record(changed_bytes=4999), LIMITS)
    assert why_not_due(replace(now, age_seconds=61), record(changed_bytes=4999), LIMITS) == ""


def test_a_damaged_base_is_built_again_at_once_and_one_let_go_is_not() -> None:
    now = replace(BASED, base_rows=None)
    known = record(changed_bytes=0)
    assert why_not_due(now, known, LIMITS) != ""
    known.base_bytes = 0  # as `BaseSlot.drop` does for damage
    assert why_not_due(now, known, LIMITS) == ""


@pytest.mark.parametrize("base_rows", [5000, None], ids=["another", "first"])
def test_no_base_is_built_that_the_disk_has_no_space_for_however_old_the_last_one_is(base_rows: int | None) -> None:
    enough = replace(BASED, base_rows=base_rows, age_seconds=1e9, build_bytes=100_000, free_bytes=100_000)
    assert why_not_due(enough, record(), LIMITS) == ""
    assert "the disk has too little space" in why_not_due(replace(enough, free_bytes=99_999), record(), LIMITS)
