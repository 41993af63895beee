"""The durable watermark of a bucket, where the disk takes only a part of it."""

from __future__ import annotations

import errno
import resource
from typing import TYPE_CHECKING

import pytest

from scankv.model.errors import DataLoss, DiskFailed
from streaming_server.storage.files import durable_watermark
from streaming_server.storage.files.durable_watermark import DurableWatermark

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_watermark_whose_creation_was_cut_short_is_created_by_the_next_attempt(tmp_path: Path) -> None:
    path = tmp_path / "0000.durable"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(DataLoss):
            DurableWatermark(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    watermark = DurableWatermark(path)
    assert watermark.read() == 0
    watermark.close()


def test_the_name_of_a_watermark_is_synced_again_if_a_crash_came_before_its_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "0000.durable"
    synced: list[Path] = []

    def crash(_: Path) -> None:
        raise OSError(errno.EIO, "the power is cut")

    def opened(sync: Callable[[Path], None]) -> DurableWatermark:
        monkeypatch.setattr(durable_watermark, "sync_directory", sync)
        return DurableWatermark(path)

    with pytest.raises(DiskFailed):
        opened(crash)
    watermark = opened(synced.append)
    assert synced == [tmp_path]
    watermark.write(7)
    watermark.close()
    opened(crash).close()  # Something was durable, so the name is.
