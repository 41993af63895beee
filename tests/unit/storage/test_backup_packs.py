"""The small files of a bucket are stored together, in objects that a restore reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streaming_server.storage.backup.backup_store import BackupStore
from streaming_server.storage.backup.backup_writer import BackupWriter

if TYPE_CHECKING:
    from pathlib import Path


def test_small_files_beyond_the_largest_object_begin_the_next_one(tmp_path: Path) -> None:
    bucket = tmp_path / "table" / "buckets" / "0000"
    bucket.mkdir(parents=True)
    contents = {
        f"buckets/0000/{name}": name.encode() * size for name, size in zip("abcdef", (4, 6, 1, 12, 3, 2), strict=True)
    }
    for path, content in contents.items():
        (tmp_path / "table" / path).write_bytes(content)
    store = BackupStore(str(tmp_path / "backups"))
    writer = BackupWriter(store, None, lambda: None, max_pack_bytes=10)
    files = writer.copy(tmp_path / "table", "i")
    assert [file.offset for file in files] == [0, 4, 0, 0, 0, 3]
    packs = {file.pack: store.read_object(file.pack, 12) for file in files}
    assert list(map(len, packs.values())) == [10, 1, 12, 5]
    assert {file.path: packs[file.pack][file.offset : file.offset + file.size] for file in files} == contents
    assert writer.done_bytes == writer.new_bytes == 28


def test_a_bucket_without_files_has_no_object(tmp_path: Path) -> None:
    (tmp_path / "table" / "buckets" / "0000").mkdir(parents=True)
    store = BackupStore(str(tmp_path / "backups"))
    assert BackupWriter(store, None, lambda: None).copy(tmp_path / "table", "i") == ()
    assert not store.objects()
