"""Which buckets of a table without a primary key can have the rows of a predicate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.model.expressions import plan_keys
from scankv.model.keys.buckets import bucket_of
from streaming_server.storage.rows.key_encoder import bucket_codec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scankv.model.expressions import BoundPredicate
    from scankv.model.tables.schema import TableDefinition


def buckets_of_rows(where: BoundPredicate, definition: TableDefinition) -> Sequence[int] | None:
    """Returns the buckets that can have rows for which a predicate is true, ascending.

    The predicate restricts them if it sets all columns of the bucket key to single values: with `==`, `is_in`, or
    `is_null`.

    Args:
        where: The predicate, bound to the table's schema.
        definition: The table.

    Returns:
        The buckets. None: all of them can; or the table has a primary key, so that the keys themselves say it.
    """
    if definition.has_key or not definition.bucket_key:
        return None
    ranges = plan_keys(where, bucket_codec(definition)).ranges
    if len(ranges.keys) < len(ranges):
        return None
    return sorted({int(number) for number in bucket_of(pa.array(ranges.keys, pa.binary()), definition.buckets)})
