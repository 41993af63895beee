"""Simulates what a crash leaves in the checkpoint of a streaming query."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def forget_last_commit(checkpoint: Path) -> None:
    """Makes the last micro-batch planned but not committed, as after a crash right after the sink's commit."""
    commits = checkpoint / "commits"
    _remove(commits, max(_batches(commits)))


def forget_batches(checkpoint: Path, first: int) -> None:
    """Makes the query plan and write some micro-batches again: this one and all later ones."""
    for folder in (checkpoint / "offsets", checkpoint / "commits"):
        for batch in [each for each in _batches(folder) if each >= first]:
            _remove(folder, batch)


def _batches(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir() if path.name.isdigit()]


def _remove(folder: Path, batch: int) -> None:
    (folder / str(batch)).unlink()
    (folder / f".{batch}.crc").unlink(missing_ok=True)
