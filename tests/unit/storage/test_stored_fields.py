"""Errors of content that makes no sense."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from scankv.model.errors import DataLoss, DiskFull
from streaming_server.storage.backup.archive_segment import read_segment
from streaming_server.storage.backup.backup_manifest import read_manifest
from streaming_server.storage.backup.backup_store import BackupStore
from streaming_server.storage.backup.stored_fields import translate_unusable
from tests.fuzz.file_targets import COMMIT, manifests, segments

if TYPE_CHECKING:
    from pathlib import Path


def test_what_makes_no_sense_leaves_its_traceback_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLoss, match=r"^the backup b cannot be used, .* \(KeyError: 'a'\)$"):
        with translate_unusable("the backup b"):
            raise KeyError("a")
    (record,) = caplog.records
    assert record.getMessage() == "the backup b cannot be used: KeyError: 'a'"
    assert record.exc_info is not None
    assert record.exc_info[2] is not None


def test_errors_that_say_what_is_wrong_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DiskFull), translate_unusable("the backup b"):
        raise DiskFull("the disk is full")
    assert not caplog.records


@pytest.mark.parametrize(
    "changed",
    [
        {"bogus": 1},
        {"token": ["t"]},
        {"token": "\ud800"},
        {"id": 5},
        {"micros": "x"},
        {"served_micros": -1},
        {"number": -1},
        {"rows": -1},
        {"rows": 2**70},
        {"tables": {"a.b": 7}},
        {"tables": {}},
        {"log_offsets": {"a.b": {"0": "z"}}},
        {"log_offsets": {"a.b": {"z": 1}}},
        {"log_offsets": {"a.b": {"-1": 1}}},
        {"log_offsets": {"a.b": {"0": -1}}},
        {"log_offsets": {"a.b": [1]}},
        {"log_offsets": None},
        {"coordinator": -1},
        {"principal": "root"},
        {"principal": {"a": 1}},
    ],
    ids=str,
)
def test_a_commit_that_no_server_could_read_is_refused_with_its_file(tmp_path: Path, changed: dict[str, Any]) -> None:
    store = BackupStore(str(tmp_path))
    manifest, segment = json.loads(manifests()[0]), json.loads(segments()[0])
    for content in (manifest, segment):
        content["committed"][0].update(changed)
    check_refused(store, manifest, segment)


@pytest.mark.parametrize("principals", [{"t": 5}, {"t": ""}, {"t": "a\nb"}, {"t": "x" * 201}, ["t"], 5], ids=str)
def test_what_is_no_principal_of_a_commit_is_refused_with_its_file(tmp_path: Path, principals: object) -> None:
    store = BackupStore(str(tmp_path))
    manifest, segment = json.loads(manifests()[0]), json.loads(segments()[0])
    check_refused(store, manifest | {"principals": principals}, segment | {"principals": principals})


def check_refused(store: BackupStore, manifest: dict[str, Any], segment: dict[str, Any]) -> None:
    id_ = manifest["backup_id"]
    store.write_manifest(id_, manifest)
    with pytest.raises(DataLoss, match=f"^the manifest of the backup {id_} in .* cannot be read: "):
        read_manifest(store, id_)
    store.write_segment(id_, segment)
    with pytest.raises(DataLoss, match=f"^the segment {id_} in .* cannot be read: "):
        read_segment(store, id_)


def test_commits_are_read_as_they_were_written(tmp_path: Path) -> None:
    store, manifest = BackupStore(str(tmp_path)), json.loads(manifests()[0])
    id_ = manifest["backup_id"]
    store.write_manifest(id_, manifest)
    (found,) = read_manifest(store, id_).committed
    assert type(COMMIT).from_json(dict(found)) == COMMIT
    del manifest["principals"]
    store.write_manifest(id_, manifest)
    assert "principal" not in read_manifest(store, id_).committed[0]
