"""Translates the service times of a bucket that comes from another data directory.

Changes and writers expire by service time, which counts how long servers have run on a directory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from scankv.model.errors import DataLoss, NewerFormat
from streaming_server.storage.bucket.bucket_state import STATE_KEY, BucketState
from streaming_server.storage.bucket.writer_states import WriterState
from streaming_server.storage.changelog.service_times import shift_log_times
from streaming_server.storage.rocks.store_options import scan_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streaming_server.storage.rocks.store import RocksStore

_WRITER: Final = b"writer/"
_AFTER_WRITERS: Final = b"writer0"


def shift_service_times(store: RocksStore, state: BucketState, micros: int) -> BucketState:
    """Adds a number of microseconds to all service times of a bucket, and returns the state that it has then.

    Blocks. Durable after the next sync of the store.

    Raises:
        DataLoss: The bucket is damaged.
    """
    if not micros or state == BucketState():
        return state
    batch = store.batch()
    state = shift_log_times(store, batch, state, micros)
    batch.put_meta(STATE_KEY, state.to_bytes())
    for key, stored in _stored_writers(store):
        try:
            writer = WriterState.from_bytes(stored)
        except (DataLoss, NewerFormat):
            continue  # A request of the writer gets the error.
        batch.put_meta(key, replace(writer, used_micros=max(0, writer.used_micros + micros)).to_bytes())
    store.write(batch)
    return state


def _stored_writers(store: RocksStore) -> Iterator[tuple[bytes, bytes]]:
    options = scan_options(_AFTER_WRITERS)
    iterator = None
    try:
        iterator = store.meta.iter(options)
        iterator.seek(_WRITER)
        while iterator.valid():
            yield cast("bytes", iterator.key()), cast("bytes", iterator.value())
            iterator.next()
        iterator.status()
    except Exception as error:
        raise store.failure(error) from error
    finally:
        del iterator  # before its options, which it only borrows
