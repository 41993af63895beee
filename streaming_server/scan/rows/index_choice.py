"""Which indexes can find the rows that match a predicate? Pure planning, except for the thread it may run in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from scankv.model.expressions import plan_index
from scankv.model.keys.buckets import KeyPlaces
from streaming_server.scan.read_plan import is_cheap_to_plan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from scankv.model.expressions import IndexPlan
    from streaming_server.scan.read_plan import ReadPlan
    from streaming_server.scan.row_reader import RowReader
    from streaming_server.storage.rows.index_codec import IndexCodec
    from streaming_server.storage.rows.table_codec import TableCodec

_MANY_RANGES: Final = 256


@dataclass(frozen=True, slots=True)
class IndexChoice:
    """The index that a scan uses, and the ranges of entries that it reads there. Immutable."""

    codec: IndexCodec
    plan: IndexPlan


def plan_reads(plan: ReadPlan, codec: TableCodec) -> tuple[RowReader, list[IndexChoice]]:
    """Binds a plan to a table. Returns its reader, and the indexes that can find the keys, best first.

    Raises:
        SchemaMismatch: A column does not exist, or a value does not fit the type of its column.
    """
    reader = plan.reader(codec.rows, codec.key_codec)
    if len(reader.ranges) > _MANY_RANGES and codec.definition.has_key:
        places = KeyPlaces(codec.definition.key_schema, codec.definition.bucket_key, codec.definition.buckets)
        reader = replace(reader, by_bucket=places.of_ranges(reader.ranges, codec.definition.own_buckets))
    return reader, index_choices(reader, codec.indexes.values())


async def plan_reads_off_loop(
    run: Callable[..., Awaitable[tuple[RowReader, list[IndexChoice]]]],
    plan: ReadPlan,
    codec: TableCodec,
) -> tuple[RowReader, list[IndexChoice]]:
    """Calls `plan_reads`; in a thread by `run` if it may take milliseconds, as with hundreds of comparisons."""
    if is_cheap_to_plan(plan.where):
        return plan_reads(plan, codec)
    return await run(plan_reads, plan, codec)


def index_choices(reader: RowReader, indexes: Iterable[IndexCodec]) -> list[IndexChoice]:
    """Returns the indexes whose columns a predicate bounds, best first; none if the key bounds the rows already.

    In a partitioned table, the key bounds the rows of a partition, and an index begins with the partition columns as
    well. So an index is chosen there if it bounds more columns than the key does.

    For each index, this takes as long as planning the key.

    Args:
        reader: How the rows would be read without an index.
        indexes: The indexes of the table.
    """
    where, by_key = reader.residual, None
    if where is not None and reader.codec.definition.partition_by:
        where = reader.where
        by_key = None if where is None else plan_index(where, reader.keys)
    elif reader.ranges.is_bounded:
        return []
    if where is None:
        return []
    choices = [
        IndexChoice(codec, plan)
        for codec in indexes
        if (plan := plan_index(where, codec.columns)) is not None
        and (by_key is None or plan.rank[:2] > by_key.rank[:2])
    ]
    return sorted(choices, key=lambda choice: choice.plan.rank, reverse=True)


def choose_index(choices: Iterable[IndexChoice], indexes: Iterable[IndexCodec]) -> IndexChoice | None:
    """Returns the best choice whose index is among the usable `indexes`. None: no choice is usable."""
    usable = {codec.index.id for codec in indexes}
    return next((choice for choice in choices if choice.codec.index.id in usable), None)
