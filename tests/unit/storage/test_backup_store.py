"""What a location of backups has beyond what ScanKV writes there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scankv.model.errors import BackupFailed, DataLoss
from streaming_server.storage.backup import backup_store
from streaming_server.storage.backup.backup_store import BackupStore

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("folder", "read", "write"),
    [
        ("manifests", BackupStore.read_manifest, BackupStore.write_manifest),
        ("archive", BackupStore.read_segment, BackupStore.write_segment),
    ],
)
def test_manifests_and_segments_beyond_the_limit_are_not_read_and_not_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    folder: str,
    read: Callable[[BackupStore, str], dict[str, Any]],
    write: Callable[[BackupStore, str, dict[str, Any]], None],
) -> None:
    store, content = BackupStore(str(tmp_path)), {"text": "x" * 5_000_000}
    write(store, "a", content)
    size = Path(tmp_path, folder, "a.json").stat().st_size
    monkeypatch.setattr(backup_store, "MAX_JSON_BYTES", size)
    assert read(store, "a") == content
    monkeypatch.setattr(backup_store, "MAX_JSON_BYTES", size - 1)
    with pytest.raises(DataLoss, match=rf"a\.json in .* has more than {size - 1:,} bytes; this is the limit"):
        read(store, "a")
    with pytest.raises(BackupFailed, match=rf"b\.json .* has {size:,} bytes; the limit is {size - 1:,}"):
        write(store, "b", content)
    assert not Path(tmp_path, folder, "b.json").exists()


def test_a_record_of_the_archive_beyond_the_limit_counts_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BackupStore(str(tmp_path))
    store.write_reached({"micros": 5})
    assert store.read_reached() == {"micros": 5}
    monkeypatch.setattr(backup_store, "MAX_JSON_BYTES", 10)
    assert store.read_reached() == {}
