"""Keys of tables with the columns `SCORES`, by the bucket or the tablet that has them."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.model.keys.buckets import bucket_of_one, tablet_of
from scankv.model.keys.key_codec import KeyCodec

if TYPE_CHECKING:
    from collections.abc import Callable

_CODEC = KeyCodec([pa.string()], ["player"])


def key_of_player(player: str) -> bytes:
    """Returns the encoded key of a player."""
    return _CODEC.encode_one((player,))


def player_in(bucket: int, buckets: int) -> str:
    """Returns a player in a bucket of a table of so many buckets."""
    return first_player(lambda player: _bucket_of(player, buckets) == bucket)


def tablet_of_player(player: str, buckets: int, tablets: int) -> int:
    """Returns the tablet of a player in a table of so many buckets and tablets."""
    return tablet_of(_bucket_of(player, buckets), buckets, tablets)


def first_player(fits: Callable[[str], bool]) -> str:
    """Returns the first of the players `k0`, `k1` and so on that fits."""
    return next(player for player in (f"k{number}" for number in count()) if fits(player))


def _bucket_of(player: str, buckets: int) -> int:
    return bucket_of_one(key_of_player(player), buckets)
