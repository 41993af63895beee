"""Nothing goes around the interface of the changelog, so that another log can stand behind it.

Outside of its package, code uses the interface and the values that it takes and returns. Only two files make a log.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.test_imports import ROOT, imports_of

if TYPE_CHECKING:
    from collections.abc import Iterator

CHANGELOG = "streaming_server.storage.changelog"
INSIDE = Path(*CHANGELOG.split("."))

# What the interface consists of: modules, and of modules that have more, single names.
INTERFACE = {
    "change_log",
    "log_span",
    "log_state",
    "offsets",
    "range_markers.MarkerReached",
    "range_markers.MarkerReason",
    "range_markers.MarkerRecord",
    "range_markers.RangeMarker",
    "records.ChangeOrigin",
    "records.Changes",
    "records.LogRecord",
    "records.MAX_CHANGES_PER_RECORD",
    "records.MAX_RECORD_BYTES",
    "records.NO_ORIGIN",
    "records.RowKind",
    "records.rows_of",
    "retention_holds",
    "segments.Segment",
    "service_times",
    "verification",
}

# Where a log is made: the implementation that a file imports.
MADE_IN = {
    "streaming_server/storage/bucket/bucket.py": "bucket_log.BucketLog",
    "streaming_server/storage/snapshots/checkpoint.py": "stored_log.StoredLog",
}

# How the store of a bucket writes the column family of the changelog.
WRITES = {"put_log", "delete_log"}
STORE = Path("streaming_server/storage/rocks/store_batch.py")


def detours(root: Path) -> list[str]:
    """Returns everything below `root` that goes around the interface, as `file:line: what`."""
    found = []
    for path in sorted((root / "streaming_server").rglob("*.py")):
        relative = path.relative_to(root)
        if INSIDE not in relative.parents:
            found += [f"{relative}:{line}: {what}" for line, what in _detours_in(path.read_text(), relative)]
    return found


def _detours_in(source: str, path: Path) -> Iterator[tuple[int, str]]:
    for imported in imports_of(source, ".".join(path.parent.parts)):
        name = imported.module.removeprefix(f"{CHANGELOG}.")
        if name == imported.module or name == MADE_IN.get(path.as_posix()):
            continue
        if name not in INTERFACE and name.partition(".")[0] not in INTERFACE:
            yield imported.line, f"{name} is a part of one implementation of the changelog"
    if path == STORE:
        return
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=attribute) if attribute in WRITES:
                yield node.lineno, f"{attribute} writes the changelog of one implementation"
            case ast.Attribute(attr="log", value=ast.Name(id="store") | ast.Attribute(attr="store" | "_store")):
                yield node.lineno, "the column family of the changelog belongs to one implementation"


@pytest.mark.breadth
def test_nothing_goes_around_the_interface_of_the_changelog() -> None:
    assert detours(ROOT) == []


def test_the_rules_name_what_exists() -> None:
    modules = {path.stem for path in (ROOT / INSIDE).glob("*.py")}
    assert {name.partition(".")[0] for name in {*INTERFACE, *MADE_IN.values()}} <= modules
    for file, name in MADE_IN.items():
        assert f"{CHANGELOG}.{name}" in {imported.module for imported in imports_of((ROOT / file).read_text(), "")}
    store = (ROOT / STORE).read_text()
    assert all(f"def {name}(" in store for name in WRITES)


@pytest.mark.parametrize(
    ("file", "source", "message"),
    [
        (
            "streaming_server/storage/bucket/bucket.py",
            "from streaming_server.storage.changelog.log_marks import LogMark",
            "log_marks.LogMark is a part of one implementation",
        ),
        (
            "streaming_server/engine/snapshots/splits.py",
            "from streaming_server.storage.changelog.records import RowKind, record_key",
            "records.record_key is a part of one implementation",
        ),
        ("streaming_server/storage/bucket/bucket.py", "batch.put_log(b'', b'')", "put_log writes the changelog"),
        ("streaming_server/storage/backup/a.py", "for key in self._store.log.keys(): pass", "the column family of"),
    ],
)
def test_a_planted_detour_is_found(tmp_path: Path, file: str, source: str, message: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    (found,) = detours(tmp_path)
    assert found.startswith(f"{file}:")
    assert message in found
