"""Translates the service times of a changelog that comes from another data directory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from streaming_server.storage.changelog.log_marks import LogMarks

if TYPE_CHECKING:
    from streaming_server.storage.changelog.change_log import State
    from streaming_server.storage.rocks.store import RocksStore
    from streaming_server.storage.rocks.store_batch import StoreBatch


def shift_log_times(store: RocksStore, batch: StoreBatch, state: State, micros: int) -> State:
    """Adds the translated service times of a changelog to a batch, and returns the state after the batch.

    Args:
        store: The store of the bucket.
        batch: The batch.
        state: The state of the bucket.
        micros: What is added to each time. A time that would be negative becomes zero, so no change expires early.

    Raises:
        DataLoss: The marks of the changelog cannot be read.
    """
    for mark in LogMarks(store):
        LogMarks.put(batch, replace(mark, micros=max(0, mark.micros + micros)))
    return replace(
        state,
        log_micros=max(0, state.log_micros + micros),
        log_marked_micros=max(0, state.log_marked_micros + micros),
    )
