"""The shape of a table: what one answer of the server says about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.model.keys.buckets import KeyPlaces, tablet_of
from scankv.model.tables.log_tables import require_key
from scankv.model.tables.merge_spec import NO_MERGING, MergeSpec, partial_schema
from scankv.model.tables.merge_wire import merging_from_proto
from scankv.model.types.default_values import values_from_ipc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scankv.v1 import table_pb2


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table as one answer of the server describes it. Shapes of different answers must not be mixed.

    Attributes:
        description: The answer.
        schema: The columns.
        key_schema: The key columns in key order; none in a table without a primary key.
        defaults: What rows get that are written without a column, by column.
        places: Finds the buckets of keys. None: the table has no tablets.
    """

    description: table_pb2.Table
    schema: pa.Schema
    key_schema: pa.Schema
    defaults: Mapping[str, pa.Scalar]
    places: KeyPlaces | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, description: table_pb2.Table) -> TableShape:
        """Decodes what the server describes."""
        schema = pa.ipc.read_schema(pa.py_buffer(description.arrow_schema))
        key_schema = pa.schema([schema.field(name) for name in description.primary_key])
        places = None
        if description.tablets > 1:
            places = KeyPlaces(key_schema, description.bucket_key, description.buckets)
        return cls(description, schema, key_schema, values_from_ipc(description.column_defaults), places)

    def tablet_of(self, keys: Sequence[bytes]) -> int | None:
        """Returns the tablet of some encoded keys. None: they have none, or not all have the same one."""
        if self.places is None:
            return None
        buckets, tablets = self.description.buckets, self.description.tablets
        found = {tablet_of(self.places.bucket_of(key), buckets, tablets) for key in keys}
        return found.pop() if len(found) == 1 else None

    def is_part_of(self, newer: TableShape) -> bool:
        """Whether a later shape of the table has all of its columns, with their names and types."""
        columns = dict(zip(newer.description.column_ids, newer.schema, strict=True))
        return self.description.incarnation == newer.description.incarnation and all(
            id_ in columns and columns[id_] == field
            for id_, field in zip(self.description.column_ids, self.schema, strict=True)
        )

    @property
    def has_key(self) -> bool:
        """Whether the table has a primary key."""
        return len(self.key_schema) > 0

    def require_key(self, consequence: str) -> None:
        """Raises NoPrimaryKey, which states the consequence, if the table has no primary key."""
        require_key(self.name, self.key_schema.names, consequence)

    @property
    def name(self) -> str:
        """The name as `database.table`."""
        return self.description.name

    @property
    def merge_engine(self) -> str:
        """The option `merge_engine`, or its default."""
        return self.description.options.get("merge_engine", "last_row")

    @property
    def merging(self) -> MergeSpec:
        """How rows of one key are merged, apart from the merge engine's name."""
        return merging_from_proto(self.description.merging)

    @property
    def counted_columns(self) -> set[str]:
        """The columns with the function `count`: only whether they have a value matters, so any type fits."""
        return {each.column for each in self.merging.aggregates if each.function == "count"}

    def partial_schema(self, columns: Sequence[str], *, overwrite: bool) -> pa.Schema:
        """Returns the schema of a write of some columns.

        Raises:
            SchemaMismatch: These columns cannot be written alone.
            InvalidRequest: The merge engine takes complete rows only.
        """
        engine, spec = ("last_row", NO_MERGING) if overwrite else (self.merge_engine, self.merging)
        return partial_schema(self.schema, self.key_schema.names, engine, spec, columns)
