"""Reads the rows of keys that lie close together, as those of a deleted range do: with an iterator, not one by one."""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from typing import TYPE_CHECKING, Final, cast

from streaming_server.storage.rocks.store_options import scan_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streaming_server.storage.rocks.store import RocksStore

_BLOCK: Final = 512
"""Rows that are read at once, which holds the interpreter lock for about 0.1 ms."""
_ROWS_PER_KEY: Final = 3
"""An iterator reads so many rows in less time than a lookup of one key takes."""
_MAX_SKIPS: Final = 64


def get_dense_rows(store: RocksStore, keys: list[bytes]) -> tuple[list[bytes | None], bool]:
    """Returns what `RocksStore.get_rows` returns, sooner where most rows between ascending keys are asked for.

    Other keys cost one block more. Call it while nothing is written.

    Returns:
        The rows, and whether each key has one and it is known that no other row lies between the first and the last.
    """
    found: dict[bytes, bytes] = {}
    done = 0  # The keys up to the last row that was read.
    options = scan_options(keys[-1] + b"\0", max_skips=_MAX_SKIPS)
    rows: Iterator[tuple[bytes, bytes]] | None = None
    try:
        rows = cast("Iterator[tuple[bytes, bytes]]", store.rows.items(from_key=keys[0], read_opt=options))
        # The iterator also ends at damage, and after many deleted rows: the remaining keys are looked up.
        while block := list(islice(rows, _BLOCK)):
            covered = bisect_right(keys, block[-1][0]) - done
            if covered * _ROWS_PER_KEY < len(block) or not (done or _ascend(keys)):
                break
            found.update(block)
            done += covered
            if len(block) < _BLOCK:
                break
    except Exception as error:
        raise store.failure(error) from error
    finally:
        del rows  # before its options, which it only borrows
    if not done:
        return store.get_rows(keys), False
    read: list[bytes | None] = list(map(found.get, keys[:done]))
    if done < len(keys):
        return read + store.get_rows(keys[done:]), False
    return read, len(found) == len(keys) and None not in read


def _ascend(keys: list[bytes]) -> bool:
    return all(map(bytes.__lt__, keys, keys[1:]))
