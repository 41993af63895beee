"""Encodes single index entries without Arrow, to the same bytes as `IndexCodec.entries`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scankv.model.keys.key_codec import NOT_NULL_MARK, NULL_MARK
from scankv.model.limits import MAX_KEY_BYTES
from scankv.model.rows.key_values import value_encoder
from scankv.model.rows.row_values import NotExactError, RowValues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scankv.model.tables.columns import Schema
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
        # The value of most entries, because few indexes cover columns.
        self._no_columns: Final = None if index.covered else self._encode_row([])

    def entry(self, key: bytes, row: Values) -> tuple[bytes, bytes]:
        """Returns the key and the value of the entry of a row with an encoded primary key.

        Raises:
            NotExactError: The row has no entry, because its columns are too long; or a value is not exact.
        """
        columns = b""
        for place, encode, mark, nullable in self._columns:
            value = row[place]
            if value is not None:
                columns += mark + encode(value)
            elif nullable:
                columns += NULL_MARK
            else:
                raise NotExactError
        if len(columns) > MAX_KEY_BYTES:
            raise NotExactError
        values = self._no_columns
        if values is None:
            values = self._encode_row([row[place] for place in self._covered])
        return self._prefix + columns + key, values
