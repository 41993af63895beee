"""The durable watermark of a bucket, where the disk takes only a part of it."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import pytest

from scankv.model.errors import DataLoss
from streaming_server.storage.files.durable_watermark import DurableWatermark

if TYPE_CHECKING:
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
