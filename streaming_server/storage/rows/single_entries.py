"""Encodes single index entries without Arrow, to the same bytes as `IndexCodec.entries`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scankv.model.keys.key_codec import NOT_NULL_MARK, NULL_MARK
from scankv.model.limits import MAX_KEY_BYTES
from scankv.model.rows.key_values import value_encoder
from scankv.model.rows.row_values import NotExactError, RowValues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scankv.model.tables.schema import Schema
    from streaming_server.storage.rows.index_codec import IndexCodec
    from streaming_server.storage.rows.single_rows import Values


class SingleEntries:
    """Encodes single entries of one index. Immutable.

    Args:
        index: The index.
        schema: The schema of the rows, for which `has_single_rows` is true.
    """

    def __init__(self, index: IndexCodec, schema: Schema) -> None:
        names: Sequence[str] = schema.names
        self._prefix: Final = index.prefix
        self._columns: Final = [
            (names.index(name), value_encoder(type_), NOT_NULL_MARK if nullable else b"", nullable)
            for name, type_, nullable in zip(
                index.columns.names, index.columns.types, index.columns.nullable, strict=True
            )
        ]
        self._covered: Final = [names.index(name) for name in index.covered]
        self._encode_row: Final = RowValues(1, [schema.column(name).type for name in index.covered]).encode

    def entry(self, key: bytes, row: Values) -> tuple[bytes, bytes]:
        """Returns the key and the value of the entry of a row with an encoded primary key.

        Raises:
            NotExactError: The row has no entry, because its columns are too long; or a value is not exact.
        """
        parts: list[bytes] = []
        for place, encode, mark, nullable in self._columns:
            value = row[place]
            if value is not None:
                parts.append(mark + encode(value))
            elif nullable:
                parts.append(NULL_MARK)
            else:
                raise NotExactError
        columns = b"".join(parts)
        if len(columns) > MAX_KEY_BYTES:
            raise NotExactError
        return b"".join((self._prefix, columns, key)), self._encode_row([row[place] for place in self._covered])
