"""Stored rows of any schema as rows of the current schema, without hidden columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scankv.model.rows.row_values import NotExactError, RowValues

if TYPE_CHECKING:
    from streaming_server.storage.rows.table_codec import TableCodec

_FEW_ROWS: Final = 100
"""The most rows that are encoded one by one. Columns are faster for more."""


class VisibleRows:
    """Encodes stored rows again for a client. Keeps the functions of the current schema. Bound to the event loop."""

    def __init__(self) -> None:
        self._known: tuple[TableCodec, RowValues] | None = None

    def encode(self, codec: TableCodec, rows: list[bytes]) -> list[bytes]:
        """Returns rows in the same order.

        Raises:
            DataLoss: A row is damaged.
        """
        single = codec.single
        if single is None or not 0 < len(rows) <= _FEW_ROWS:
            return codec.rows.visible(rows)
        if self._known is None or self._known[0] is not codec:
            self._known = codec, RowValues(codec.definition.schema.id, codec.schema.types)
        values, width = self._known[1], len(codec.schema)
        if not single.stores_hidden and all(row.startswith(values.header) for row in rows):
            return rows
        try:
            return [values.encode(single.decode(row)[:width]) for row in rows]
        except NotExactError:
            # A value needs Arrow, or a row is damaged.
            return codec.rows.visible(rows)
