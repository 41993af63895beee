"""The plan of a request that reads rows."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from scankv.model.expressions import BoundPredicate, all_of, bind
from scankv.model.expressions.binding import columns_of
from scankv.model.tables.expiry import tick_of
from streaming_server.scan.row_reader import RowReader

if TYPE_CHECKING:
    import pyarrow as pa

    from scankv.model.expressions import Predicate
    from scankv.model.keys.key_codec import KeyCodec
    from scankv.model.keys.key_range import KeyRange
    from scankv.model.tables.columns import Schema
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.rows.row_codec import RowCodec

_SHORT_NODES: Final = 32
_SHORT_LISTS: Final = 256


def is_cheap_to_plan(where: Predicate | None) -> bool:
    """Whether planning the key ranges takes a fraction of a millisecond. If not, plan in a thread."""
    return where is None or (where.nodes <= _SHORT_NODES and where.list_values <= _SHORT_LISTS)


class ReadPath(enum.Enum):
    """Where rows are read from."""

    AUTO = enum.auto()
    ROCKSDB = enum.auto()
    COLUMNAR = enum.auto()


@dataclass(frozen=True, slots=True)
class SchemaBinding:
    """A predicate, bound to one schema of its table."""

    schema: pa.Schema
    predicate: BoundPredicate


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """The rows and columns that one request reads. Immutable.

    Attributes:
        buckets: The buckets. None: all.
        columns: The columns. None: all.
        where: The predicate on the rows. None: all rows.
        where_message: The predicate as it was sent.
        key_range: The keys.
        reverse: Whether to read in descending order.
        ordered: Whether to return the rows of all buckets in one order.
        limit: The most rows of the complete scan. None: no limit.
        resume_token: Where the scan resumes; empty at its beginning.
        stored_rows: Whether to return the stored rows as an additional column.
        read_path: Where to read the rows from.
        latest: Whether to read what is applied, durable or not, and maybe a part of a transaction.
        binding: The predicate, bound by `bind`. None: not bound yet.
        now_micros: The time as of which rows have expired, in microseconds since 1970 UTC. It is a tick, and belongs
            to the view. None: not known yet, so rows of a table whose rows expire cannot be read.
        keeps_expired: Whether to read expired rows, too.
        changes_follow: Whether the reader continues with the changes after the view.
        expired_at: The time as of which rows have expired, in microseconds since 1970 UTC. None: the time of the view;
            if the scan resumes, the time of its first view.
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
    latest: bool = False
    binding: SchemaBinding | None = None
    now_micros: int | None = None
    keeps_expired: bool = False
    changes_follow: bool = False
    expired_at: int | None = None

    def bind(self, schema: Schema) -> ReadPlan:
        """Checks columns and predicate against a schema, and returns the plan with the bound predicate.

        Raises:
            SchemaMismatch: A column does not exist, or a value does not fit the type of its column.
        """
        schema.select(self.columns)
        if self.where is None:
            return self
        return replace(self, binding=SchemaBinding(schema.arrow, bind(self.where, schema.arrow)))

    def as_of(self, micros: int) -> ReadPlan:
        """Returns the plan for a view of a time: without the rows that had expired at its tick."""
        return replace(self, now_micros=tick_of(micros))

    def reused_names(self, definition: TableDefinition) -> tuple[tuple[str, int], ...]:
        """Returns the columns of the plan whose names meant other columns before: see `TableDefinition`."""
        schema = definition.schema
        named = () if self.where is None else columns_of(self.where, schema.arrow)
        return definition.reused_names((*(self.columns or schema.names), *named))

    def reader(self, codec: RowCodec, keys: KeyCodec) -> RowReader:
        """Returns the reader of the plan's rows, for a table with these codecs.

        Raises:
            SchemaMismatch: A column does not exist.
            NoPrimaryKey: The rows are to be in one order, and the table has no primary key.
        """
        if self.ordered:
            codec.definition.require_key("it has no order over all buckets: leave `ordered` out, or sort the rows")
        where = self.bound_to(codec)
        return RowReader.of(codec, keys, self.columns, where, self.key_range, stored_rows=self.stored_rows)

    def bound_to(self, codec: RowCodec) -> BoundPredicate | None:
        """Returns the predicate, bound to a version of the table, for the rows that have not expired.

        None: all rows. Raises SchemaMismatch.
        """
        where, expiry = self._bound_to(codec.schema), codec.definition.expiry
        if expiry is None or self.keeps_expired:
            return where
        # Rule: a reader that adds up changes never gets a deletion of a row that it has not received. So it gets the
        # expired rows whose deletion is still to come.
        if self.changes_follow and not expiry.is_silent:
            return where
        assert self.now_micros is not None
        unexpired = expiry.unexpired(self.now_micros)
        if where is None:
            return BoundPredicate(unexpired, (expiry.column.name,))
        names = {*where.columns, expiry.column.name}
        ordered = tuple(name for name in (*codec.schema.names, expiry.column.name) if name in names)
        return BoundPredicate(all_of([where.predicate, unexpired]), tuple(dict.fromkeys(ordered)))

    def _bound_to(self, schema: pa.Schema) -> BoundPredicate | None:
        if self.where is None:
            return None
        # The table may have been altered since `bind`.
        if self.binding is not None and self.binding.schema.equals(schema):
            return self.binding.predicate
        return bind(self.where, schema)
