"""The codecs of the rows, keys and index entries of a table, bundled in one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from streaming_server.storage.rows.index_codec import IndexCodec
from streaming_server.storage.rows.key_encoder import KeyEncoder
from streaming_server.storage.rows.row_codec import RowCodec
from streaming_server.storage.rows.single_rows import SingleRowCodec, has_single_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from scankv.model.keys.key_codec import KeyCodec
    from scankv.model.tables.schema import TableDefinition


@dataclass(frozen=True, slots=True)
class TableCodec:
    """Encodes and decodes one version of a table. Immutable.

    Attributes:
        rows: Encodes rows of the current schema, and decodes those of all schemas.
        keys: Encodes primary keys, and finds the bucket of each.
        indexes: Encodes and decodes index entries, by index id.
        single: Encodes and decodes rows and keys one by one. None: see `has_single_rows`.
    """

    rows: RowCodec
    keys: KeyEncoder
    indexes: Mapping[int, IndexCodec]
    single: SingleRowCodec | None

    @classmethod
    def of(cls, definition: TableDefinition) -> TableCodec:
        indexes = {index.id: IndexCodec(definition, index) for index in definition.indexes}
        single = SingleRowCodec(definition) if has_single_rows(definition) else None
        return cls(RowCodec(definition), KeyEncoder(definition), indexes, single)

    @property
    def definition(self) -> TableDefinition:
        return self.rows.definition

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows, without hidden columns."""
        return self.rows.schema

    @property
    def key_codec(self) -> KeyCodec:
        return self.keys.codec
