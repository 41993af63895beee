"""The valid and invalid values of a scan's specification."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from scankv.model.changes.log_positions import LogSpec, StartFrom
from scankv.model.errors import UsageError
from scankv.model.keys.key_range import KeyRange
from scankv.model.scans.scan_spec import Resume, ScanSpec

EVERYTHING = ScanSpec(
    "a.b",
    columns=("x", "y"),
    limit=0,
    buckets=(0, 1023),
    chunk_rows=65_536,
    chunk_bytes=1024,
    snapshot_id="s",
    key_range=KeyRange(b"a", None),
    reverse=True,
    ordered=True,
    resume=Resume.LATEST,
    resume_token=b"t",
)


@pytest.mark.parametrize(
    "spec",
    [
        ScanSpec("a.b"),
        ScanSpec("a.b", columns=()),
        EVERYTHING,
        ScanSpec("a.b", if_changed_since=b"v", consistency="owner"),
    ],
    ids=str,
)
def test_spec_survives_pickling_and_hashing(spec: ScanSpec) -> None:
    copy = pickle.loads(pickle.dumps(spec))
    assert copy == spec
    assert len({copy, spec}) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"table": "b"}, '"b" is not a table name'),
        ({"columns": "name"}, "columns must be a tuple of column names, not 'name'"),
        ({"columns": ("a", 1)}, "columns must be a tuple of column names"),
        ({"columns": ("a", "b", "a")}, 'column "a" is selected twice'),
        ({"limit": -1}, "limit must be a whole number between 0 and"),
        ({"limit": 1.0}, "limit must be a whole number"),
        ({"limit": True}, "limit must be a whole number"),
        ({"limit": 2**63}, "limit must be a whole number"),
        ({"part": -1}, "part must be a whole number between 0 and"),
        ({"part": "1"}, "part must be a whole number"),
        ({"buckets": [1]}, "buckets must be a tuple"),
        ({"buckets": (1, 1024)}, "a bucket number must be a whole number between 0 and 1,023, not 1024"),
        ({"buckets": (1, 2, 1)}, "a bucket is named twice"),
        ({"chunk_rows": 0}, "chunk_rows must be a whole number between 1 and 65,536, not 0"),
        ({"chunk_rows": 65_537}, "chunk_rows must be"),
        ({"snapshot_id": ""}, "snapshot_id must be the id of a snapshot, or None for the live table, not ''"),
        ({"snapshot_id": 7}, "snapshot_id must be the id of a snapshot, or None for the live table, not 7"),
        ({"key_range": (b"a", b"b")}, "key_range must be a KeyRange, or None for all keys, not a tuple"),
        ({"reverse": 1}, "reverse must be True or False, not 1"),
        ({"unordered": 1}, "unordered must be True or False, not 1"),
        ({"ordered": True, "unordered": True}, "ordered and unordered exclude each other"),
        ({"unordered": True, "log": LogSpec()}, "unordered is not for a scan of the changelog: the changes of several"),
        ({"consistency": "instant"}, "consistency must be 'table' or 'owner', not 'instant'"),
        ({"consistency": "owner", "snapshot_id": "s"}, '"owner" is not for a snapshot, which is always of one instant'),
        ({"consistency": "owner", "read_path": "lake", "lake": "x"}, 'not for the read path "lake", which is always'),
        ({"consistency": "owner", "log": LogSpec()}, "consistency is not for a scan of the changelog: changes of"),
        ({"resume": "latest"}, r"resume must be Resume\.NEVER, Resume\.LATEST, or None for the default, not 'latest'"),
        ({"resume_token": "text"}, "a resume token must be bytes, as a stream or an error gave it, not a str"),
        (
            {"if_changed_since": "v1"},
            "if_changed_since must be the version of an earlier answer, which is bytes, not 'v1'",
        ),
        ({"if_changed_since": b""}, "if_changed_since must be the version"),
        ({"if_changed_since": b"v" * 1025}, "if_changed_since must be the version"),
        ({"if_changed_since": b"v", "resume_token": b"t"}, r"remove the condition with if_changed_since\(None\)"),
        ({"resume_token": b""}, "a resume token must have between 1 and 65,536 bytes, not 0"),
        ({"resume_token": b"x" * 65_537}, "a resume token must have between 1 and 65,536 bytes, not 65,537"),
        ({"chunk_bytes": 1023}, "chunk_bytes must be a whole number between 1,024 and 16,777,216, not 1023"),
    ],
    ids=str,
)
def test_value_out_of_range_is_refused_with_its_range(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ScanSpec(**{"table": "a.b", **fields})


def test_the_text_of_a_scan_has_what_was_set_and_nothing_else() -> None:
    assert repr(ScanSpec("a.b", limit=0, log=LogSpec(start=StartFrom.FULL))) == (
        "ScanSpec(table='a.b', limit=0, log=LogSpec(start=StartFrom.FULL))"
    )
    assert repr(LogSpec()) == "LogSpec(start=StartFrom.LATEST)"


def test_the_text_of_a_scan_of_the_lake_has_no_secrets() -> None:
    spec = ScanSpec("a.b", lake="s3://key:secret@bucket/b?token=secret", read_path="lake")
    assert repr(spec) == "ScanSpec(table='a.b', read_path='lake', lake='s3://***@bucket/b?***')"


def test_the_bytes_of_a_token_are_in_no_text() -> None:
    assert "secret" not in repr(ScanSpec("a.b", resume_token=b"secret"))
