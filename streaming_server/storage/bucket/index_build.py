"""The progress of an index build in one bucket, stored atomically with the entries, so that a crash loses neither."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scankv.model.errors import DataLoss
from streaming_server.storage.files.formats import check_format, locate

if TYPE_CHECKING:
    from streaming_server.storage.rocks.store import RocksStore

_FORMAT: Final = 1
"""The format of a record that does not name its format in the field `format`. No other format exists yet."""


@dataclass(frozen=True, slots=True)
class IndexBuild:
    """The progress of an index build. Immutable.

    Attributes:
        key: The encoded primary key of the last row whose entry was put; None before the first.
        rows: How many rows got an entry. Some may have been deleted since, and others added.
    """

    key: bytes | None = None
    rows: int = 0

    def to_bytes(self) -> bytes:
        """Returns the stored form."""
        return json.dumps({"key": None if self.key is None else self.key.hex(), "rows": self.rows}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> IndexBuild:
        """Reads the result of `to_bytes`. Raises NewerFormat."""
        fields = json.loads(data)
        check_format("the progress of an index build", fields.get("format", _FORMAT), _FORMAT)
        return cls(None if fields["key"] is None else bytes.fromhex(fields["key"]), fields["rows"])


def build_key(index: int) -> bytes:
    """Returns the key under which a bucket records an index build, in the column family `meta`."""
    return f"index-build/{index}".encode()


def entry_range(index: int) -> tuple[bytes, bytes]:
    """Returns the start (included) and end (excluded) of the keys of all entries of an index; see `index_codec`."""
    return index.to_bytes(4, "big"), (index + 1).to_bytes(4, "big")


def load_index_build(store: RocksStore, index: int) -> IndexBuild:
    """Reads the progress of an index build in a bucket. Raises DataLoss when it cannot be read."""
    try:
        stored = store.meta.get(build_key(index))
        return IndexBuild() if stored is None else IndexBuild.from_bytes(stored)
    except DataLoss as error:
        raise locate(error, store.location) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataLoss(f"{store.location} is damaged: the progress of an index build cannot be read") from error
    except Exception as error:
        raise store.failure(error) from error
