"""The codecs of the rows, keys and index entries of a table, bundled in one value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streaming_server.storage.rows.index_codec import IndexCodec
from streaming_server.storage.rows.key_encoder import KeyEncoder
from streaming_server.storage.rows.row_codec import RowCodec
from streaming_server.storage.rows.single_entries import SingleEntries
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
    _single_entries: dict[int, SingleEntries] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, definition: TableDefinition) -> TableCodec:
        indexes = {index.id: IndexCodec(definition, index) for index in definition.indexes}
        single = SingleRowCodec(definition) if has_single_rows(definition) else None
        return cls(RowCodec(definition), KeyEncoder(definition), indexes, single)

    def single_entries(self) -> list[tuple[int, SingleEntries]]:
        """Returns the encoders of single entries of all indexes, with the ids of these. Not if `single` is None."""
        # Generated on first use, as the functions for rows.
        for number, index in self.indexes.items():
            if number not in self._single_entries:
                self._single_entries[number] = SingleEntries(index, self.definition.schema)
        return [(number, self._single_entries[number]) for number in self.indexes]

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
