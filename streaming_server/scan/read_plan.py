"""What one request asks to read."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from streaming_server.scan.row_reader import RowReader

if TYPE_CHECKING:
    from scankv.model.expressions import Predicate
    from scankv.model.keys.key_codec import KeyCodec
    from scankv.model.keys.key_range import KeyRange
    from streaming_server.storage.rows.row_codec import RowCodec

_SHORT_NODES: Final = 32
_SHORT_LISTS: Final = 256


def is_planned_at_once(where: Predicate | None) -> bool:
    """Whether planning the key ranges takes a fraction of a millisecond; otherwise it belongs in a thread."""
    return where is None or (where.nodes <= _SHORT_NODES and where.list_values <= _SHORT_LISTS)


class ReadPath(enum.Enum):
    """What rows are read from."""

    AUTO = enum.auto()
    ROCKSDB = enum.auto()
    COLUMNAR = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """What one request asks to be read. Immutable.

    Attributes:
        buckets: The buckets, None for all.
        columns: The columns, None for all.
        where: What is true of the rows, None for all.
        where_message: The same as it was sent.
        key_range: The keys.
        reverse: Whether in descending order.
        ordered: Whether the rows of all buckets are in one order.
        limit: The most rows of the whole scan, None for all.
        resume_token: Where it goes on, empty at the beginning.
        stored_rows: Whether the rows as they are stored are one more column.
        read_path: What the rows are read from.
    """

    buckets: tuple[int, ...] | None
    columns: tuple[str, ...] | None
    where: Predicate | None
    where_message: bytes
    key_range: KeyRange
    reverse: bool
    limit: int | None
    resume_token: bytes
    ordered: bool = False
    stored_rows: bool = False
    read_path: ReadPath = ReadPath.AUTO

    def reader(self, codec: RowCodec, keys: KeyCodec) -> RowReader:
        """How this is read of a table with such rows and keys. Raises SchemaMismatch."""
        return RowReader.of(codec, keys, self.columns, self.where, self.key_range, stored_rows=self.stored_rows)
