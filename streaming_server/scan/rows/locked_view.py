"""A locked view: buckets that do not change while a read takes several steps, such as index entries and then rows."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from scankv.model.errors import ScanKvError
    from scankv.model.keys.key_codec import KeyCodec
    from streaming_server.scan.chunk_source import View
    from streaming_server.scan.row_reader import ReadableBucket
    from streaming_server.storage.rows.index_codec import IndexCodec
    from streaming_server.storage.rows.row_codec import RowCodec

MAX_STEP_ENTRIES: Final = 1024
"""Index entries read in one step: about a millisecond on the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedView:
    """Open buckets as of one instant: of a live table with their mutexes held, or of a pinned view.

    Bound to its event loop. Read index entries on the loop, in steps, since RocksDB's iterators hold the interpreter
    lock in a thread as well. Yield to other tasks between the steps.

    Attributes:
        codec: The codec of the rows.
        keys: The codec of their keys.
        view: The view of all buckets.
        buckets: The buckets that have rows, by number.
        indexes: The indexes that are complete in all of them.
        on_error: Called with each error of reading a bucket and the bucket's number. Returns the error to raise.
        check: Raises the reason if the view was ended and must not be read any more.
    """

    codec: RowCodec
    keys: KeyCodec
    view: View
    buckets: Mapping[int, ReadableBucket]
    indexes: Sequence[IndexCodec]
    on_error: Callable[[int, ScanKvError], ScanKvError]
    check: Callable[[], None] = field(default=lambda: None)

    async def yield_to_others(self) -> None:
        """Gives other tasks a turn of the event loop. Raises what `check` raises."""
        await asyncio.sleep(0)
        self.check()


def complete_indexes(indexes: Iterable[IndexCodec], ready: Collection[Collection[int]]) -> list[IndexCodec]:
    """Returns the indexes that are complete in every bucket.

    Args:
        indexes: The indexes of the table.
        ready: For each bucket, the ids of the indexes that are complete in it.
    """
    return [codec for codec in indexes if all(codec.index.id in ids for ids in ready)]
