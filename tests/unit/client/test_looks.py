"""What users see of objects: their texts, their tables in notebooks, and hints for names that they do not have."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import Client, LogOffsets, Scan, ScanSpec, Table, TopN, UndoReport, WriteResult, col, sync
from aio_client._client.transaction_info import CommitResult
from aio_client._input.notebooks import html_of_rows, html_table
from aio_client._sql.result import SqlResult

if TYPE_CHECKING:
    from collections.abc import Callable

EVIL = "<script>alert('&')</script>"


@pytest.mark.parametrize("kind", [Scan, sync.Scan])
def test_a_scan_shows_what_was_set_and_nothing_else(kind: type[Scan]) -> None:
    scan = kind(None, ScanSpec("game.scores"))  # type: ignore[arg-type]  # nothing is called
    assert repr(scan) == "<Scan ScanSpec(table='game.scores')>"
    refined = scan.select("player").where(col("player") == EVIL).limit(7).reverse()
    for shown in ("columns=('player',)", "limit=7", "reverse=True", EVIL):
        assert shown in repr(refined)
    assert "snapshot_id" not in repr(refined)
    assert "<td>limit</td><td>7</td>" in refined._repr_html_()
    assert "<script" not in refined._repr_html_()
    assert "token" not in refined.resume_from(b"secret key")._repr_html_()


def test_writes_show_one_line() -> None:
    offsets = LogOffsets({0: 3, 2: 9})
    assert repr(WriteResult(rows=1200, log_offsets=offsets)) == "<WriteResult of 1,200 rows in 2 buckets>"
    assert repr(CommitResult(rows=1, log_offsets={"a.b": offsets})) == "<CommitResult of 1 row in 1 table>"
    report = UndoReport(restored=2, deleted=1, conflicts=0, log_offsets=offsets)
    assert repr(report) == "<UndoReport: 2 restored, 1 deleted, 0 conflicts>"
    assert "<td>restored</td><td>2</td>" in report._repr_html_()
    assert "&lt;script&gt;" in SqlResult(rows=1, summary=EVIL)._repr_html_()
    assert "<script" not in CommitResult(rows=1, log_offsets={EVIL: offsets})._repr_html_()


def test_an_answer_of_a_watch_says_what_has_changed() -> None:
    keys = pa.table({"player": [EVIL, "bob"]})
    top = TopN(rows=keys, version=b"1", entered=keys.slice(0, 1), left=keys.slice(0, 0), moved=keys)
    assert repr(top) == "<TopN of 2 rows: 1 entered, 0 left, 2 moved since the answer before>"
    assert "&lt;script&gt;" in top._repr_html_()
    assert "<script" not in top._repr_html_()


def test_tables_in_notebooks_are_short() -> None:
    shown = html_of_rows("t", pa.table({"n": range(1000), "text": ["x" * 10_000] * 1000}))
    assert shown.count("<tr>") == 22
    assert len(shown) < 10_000
    assert html_table(EVIL, [EVIL], [[EVIL]]).count("&lt;script&gt;") == 3


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        (Client, "query", '"sql" or "scan"'),
        (Client, "transactoin", '"transaction"'),
        (Table, "insert", '"upsert" or "append"'),
        (Table, "update", '"upsert"'),
        (Table, "deleet", '"delete"'),
        (Scan, "order_by", '"ordered"'),
        (Scan, "filter", '"where"'),
        (Scan, "offset", '"resume_from" or "key_range"'),
    ],
)
@pytest.mark.parametrize("blocking", [False, True])
def test_a_name_that_is_missed_is_hinted(kind: type, name: str, hint: str, blocking: bool) -> None:
    of: type[Any] = getattr(sync, kind.__name__) if blocking else kind
    made = object.__new__(of)
    with pytest.raises(AttributeError) as caught:
        getattr(made, name)
    text = f"'{of.__name__}' object has no attribute '{name}'; did you mean {hint}"
    assert str(caught.value).startswith(text)
    assert caught.value.obj is None  # so that Python adds no hint of its own
    assert not hasattr(made, name)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_objects_with_hints_can_be_copied_and_asked_for_protocols(copied: Callable[[Scan], Scan]) -> None:
    scan = Scan(None, ScanSpec("game.scores"))  # type: ignore[arg-type]  # nothing is called
    assert copied(scan).spec == scan.spec
    assert not hasattr(scan, "__arrow_c_stream__")
    with pytest.raises(AttributeError, match=r"no attribute '_limit'$"):
        scan._limit  # type: ignore[attr-defined]  # noqa: B018
    assert getattr(scan, "order_by", None) is None


def test_a_property_that_fails_keeps_its_own_error() -> None:
    class Broken(Table):
        @property
        def depth(self) -> int:
            return self._handle.no_such_thing  # type: ignore[attr-defined,no-any-return]

    broken = Broken.__new__(Broken)
    broken._handle = SimpleNamespace()  # type: ignore[assignment]
    with pytest.raises(AttributeError, match=r"'types.SimpleNamespace' object has no attribute 'no_such_thing'$"):
        broken.depth  # noqa: B018
