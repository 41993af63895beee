"""Simulates what a crash leaves in the checkpoint of a streaming query."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def forget_last_commit(checkpoint: Path) -> None:
    """Makes the last micro-batch planned but not committed, as after a crash right after the sink's commit."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
