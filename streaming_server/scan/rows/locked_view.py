"""Buckets that nothing is written to for a while, so that index entries and rows are read of them as one view."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from scankv.model.errors import ScanKvError
    from scankv.model.keys.key_codec import KeyCodec
    from streaming_server.scan.chunk_source import View
    from streaming_server.scan.row_reader import Readable
    from streaming_server.storage.rows.index_codec import IndexCodec
    from streaming_server.storage.rows.row_codec import RowCodec

MAX_STEP_ENTRIES: Final = 1024
"""Entries read at once: about a millisecond, for which the event loop is held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedView:
    """Open buckets of one instant: of a live table with their mutexes held, or of a pinned view. Bound to its loop.

    Whoever reads entries of it does so on the event loop, in steps, since RocksDB's iterators hold the interpreter lock
    in a thread as well; between the steps others have their turn.

    Attributes:
        codec: Knows the rows.
        keys: Encodes their keys.
        view: What is read, of all buckets.
        buckets: Those of them that have rows, by number.
        indexes: The indexes that are whole in all of them.
        on_error: Told of every error that reading a bucket raises, with its number; gives the error to raise.
        check: Raises why nothing more may be read, when others have ended the view.
    """

    codec: RowCodec
    keys: KeyCodec
    view: View
    buckets: Mapping[int, Readable]
    indexes: Sequence[IndexCodec]
    on_error: Callable[[int, ScanKvError], ScanKvError]
    check: Callable[[], None] = field(default=lambda: None)

    async def yield_to_others(self) -> None:
        """Lets others have the event loop. Raises what `check` does."""
        await asyncio.sleep(0)
        self.check()


def complete_indexes(indexes: Iterable[IndexCodec], ready: Collection[Collection[int]]) -> list[IndexCodec]:
    """The indexes that are whole in all of some buckets; `ready` has, for each bucket, the ids of those that are."""
    return [codec for codec in indexes if all(codec.index.id in ids for ids in ready)]
