"""What the stores of a process share, and what they compress."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scankv.model.errors import InternalError
from streaming_server.storage.rocks.store import RocksStore
from streaming_server.storage.rocks.store_options import RocksResources

if TYPE_CHECKING:
    from pathlib import Path


def test_filters_of_unflushed_keys_take_a_quarter_of_the_write_buffers_and_come_back(tmp_path: Path) -> None:
    resources = RocksResources.of_sizes(block_cache_bytes=1 << 20, write_buffer_bytes=4 << 20)
    allowed = 2
    stores = [store(tmp_path / str(number), resources) for number in range(allowed + 1)]
    assert not resources.filters.acquire(blocking=False)
    for opened in stores:
        batch = opened.batch()
        batch.put_rows([b"a", b"c"], [b"1", b"3"])
        opened.write(batch)
        assert opened.get_rows([b"a", b"b", b"c"]) == [b"1", None, b"3"]
        opened.close()
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InternalError):
        store(file, resources)
    for _ in range(allowed):
        assert resources.filters.acquire(blocking=False)
    assert not resources.filters.acquire(blocking=False)


def store(path: Path, resources: RocksResources) -> RocksStore:
    return RocksStore(path, "a bucket", compression="none", resources=resources)


@pytest.mark.parametrize(
    ("compression", "rows_shrink", "log_shrinks"),
    [
        ("none", False, False),
        ("lz4", True, False),
        ("zstd", True, True),
    ],
)
def test_records_of_the_changelog_are_compressed_by_zstd_alone(
    tmp_path: Path, compression: str, rows_shrink: bool, log_shrinks: bool
) -> None:
    resources = RocksResources.of_sizes(block_cache_bytes=1 << 20, write_buffer_bytes=64 << 20)
    values = [bytes(1000)] * 1000

    def shrinks(family: str) -> bool:
        store = RocksStore(tmp_path / family, family, compression=compression, resources=resources)
        batch = store.batch()
        for number, value in enumerate(values):
            key = number.to_bytes(8, "big")
            if family == "log":
                batch.put_log(key, value)
            else:
                batch.put_rows([key], [value])
        store.write(batch)
        store.flush()
        used = store.family_bytes()
        size = used.rows + used.changelog
        store.close()
        return size < 500_000

    assert (shrinks("rows"), shrinks("log")) == (rows_shrink, log_shrinks)
