"""Row TTL: which rows of a table have expired at a time, as a predicate on one column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.types as pat

from scankv.model.errors import InvalidOption, did_you_mean
from scankv.model.expressions.literals import Literal
from scankv.model.expressions.nodes import Comparison, FieldPath, IsNull, Operator, Unexpired
from scankv.model.types.types import format_type

if TYPE_CHECKING:
    from scankv.model.expressions.nodes import Predicate
    from scankv.model.tables.columns import ColumnDefinition, Schema
    from scankv.model.tables.options import TableOptions

TICK_MICROS: Final = 1_000_000
"""Rows expire in steps of this many microseconds, so that all results of one step are equal."""

WRITE_TIME: Final = pa.timestamp("us", "UTC")
"""The type of the hidden column with the time of the last write."""

_MICROS_A_DAY: Final = 86_400_000_000
_MICROS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
_INT64: Final = (-(2**63), 2**63 - 1)
_INT32: Final = (-(2**31), 2**31 - 1)


def tick_of(micros: int) -> int:
    """Returns the time as of which rows expire at a time: the last tick, in microseconds since 1970 UTC."""
    return micros - micros % TICK_MICROS


@dataclass(frozen=True, slots=True)
class Expiry:
    """The row TTL of a table. Immutable.

    A row has expired when its time is not after the current tick minus the TTL. A null never expires. A date is the
    midnight that begins it, and times without a time zone are in UTC.

    Attributes:
        column: The column with the time of a row: a date or a timestamp, possibly the hidden one of the last write.
        seconds: How long rows live after that time.
        is_silent: Whether the sweep leaves no changes in the changelog.
        by_write: Whether the column is the hidden one.
        since_micros: With `by_write`, when rows began to expire by their last write, in microseconds since 1970 UTC.
            Earlier writes count as made at that time. 0: since the table was created.
    """

    column: ColumnDefinition
    seconds: int
    is_silent: bool
    by_write: bool
    since_micros: int = 0

    def bound_at(self, now_micros: int) -> int:
        """Returns the greatest value of the column that has expired, as it is stored."""
        micros = tick_of(now_micros) - self.seconds * 1_000_000
        if self.by_write and micros < self.since_micros:
            micros = 0  # No row has expired: all writes count as later, and none was made before 1970.
        type_ = self.column.type
        if pat.is_date(type_):
            low, high = _INT32
            value = micros // _MICROS_A_DAY
        else:
            low, high = _INT64
            value = micros * 1_000 if type_.unit == "ns" else micros // _MICROS[type_.unit]
        # No clock shows such times. If one did, no comparison would overflow.
        return max(low, min(high, value))

    def unexpired(self, now_micros: int) -> Unexpired:
        """Returns the predicate that is true for the rows that have not expired, bound to the column."""
        path = FieldPath((self.column.name,))
        bound = self.bound_at(now_micros)
        literal = Literal(pa.array([bound], _storage(self.column.type)).cast(self.column.type)[0])
        after = Comparison(path, Operator.GREATER, literal)
        return Unexpired((IsNull(path), after), column_id=self.column.id, bound=bound)

    def expired(self, now_micros: int) -> Predicate:
        """Returns the predicate that is true for the rows that have expired, bound to the column."""
        after = self.unexpired(now_micros).parts[1]
        assert isinstance(after, Comparison)
        return Comparison(after.left, Operator.LESS_EQUAL, after.right)


def expiry_of(
    options: TableOptions, schema: Schema, write_time: ColumnDefinition | None, since_micros: int
) -> Expiry | None:
    """Returns the row TTL that options set. None: rows do not expire.

    Args:
        options: The options of the table, which `check_expiry` accepts.
        schema: The current schema of the table.
        write_time: The hidden column with the time of the last write, if rows have one.
        since_micros: See `Expiry`.
    """
    if not options.ttl_seconds:
        return None
    is_silent = options.ttl_changes == "none"
    if options.ttl_column:
        return Expiry(schema.column(options.ttl_column), options.ttl_seconds, is_silent, by_write=False)
    assert write_time is not None
    return Expiry(write_time, options.ttl_seconds, is_silent, by_write=True, since_micros=since_micros)


def check_expiry(options: TableOptions, schema: Schema) -> None:
    """Checks the options of the row TTL against the columns of a table.

    Raises:
        InvalidOption: The column does not exist or has no time, or the table cannot have this TTL.
    """
    if not options.ttl_seconds:
        return
    name = options.ttl_column
    if not name:
        return
    if name not in schema.names:
        raise InvalidOption(
            f'table option "ttl_column" names a column that does not exist, "{name}"{did_you_mean(name, schema.names)}',
            option="ttl_column",
        )
    type_ = schema.column(name).type
    if not (pat.is_date(type_) or pat.is_timestamp(type_)):
        times = [each.name for each in schema.columns if pat.is_date(each.type) or pat.is_timestamp(each.type)]
        found = f"the table has {', '.join(times)}" if times else "the table has none: add one, or leave ttl_column out"
        raise InvalidOption(
            f'table option "ttl_column" must name a date or timestamp column, not "{name}", which is '
            f"{format_type(type_)}; {found}",
            option="ttl_column",
        )


def _storage(type_: pa.DataType) -> pa.DataType:
    return pa.int32() if pat.is_date32(type_) else pa.int64()
