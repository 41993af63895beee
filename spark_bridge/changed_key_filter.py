"""How Spark leaves out the rows of published files whose keys have changed."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from spark_bridge.memory_rows import broadcast_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

_BLOCK_BITS: Final = 6
_IN_BLOCK: Final = (1 << _BLOCK_BITS) - 1


class ChangedKeyFilter:
    """Leaves out rows with some keys, by an anti join with a table that is broadcast if it is small.

    If the key is one integer, a row of that table stands for 64 adjacent keys, and has a bit for each of them. The rows
    of a file are in key order, so 64 of them in a row look at the same entry of the hash table. With an entry for each
    key, each row would look at another place in memory, which took half of the time of a sum.

    Args:
        spark: The session.
        keys: The keys, as columns with the names of the key columns.
    """

    def __init__(self, spark: SparkSession, keys: pa.Table) -> None:
        self._spark = spark
        self._keys = keys
        types = keys.schema.types
        # An unsigned 64-bit integer is a decimal in Spark.
        self._has_blocks = len(types) == 1 and pat.is_integer(types[0]) and types[0] != pa.uint64()

    def remaining(self, rows: DataFrame) -> DataFrame:
        """Returns the rows with other keys."""
        names = self._keys.schema.names
        columns = [rows[quoted(name)] for name in names]
        return rows.join(self._gone, self._is_gone(columns), "left_anti")

    @cached_property
    def _gone(self) -> DataFrame:
        if self._has_blocks:
            gone = _blocks(self._keys.column(0))
        else:
            gone = self._keys.rename_columns([f"_key_{number}" for number in range(self._keys.num_columns)])
        return broadcast_rows(self._spark, gone)

    def _is_gone(self, key: Sequence[Column]) -> list[Column]:
        from pyspark.sql import functions as F

        if not self._has_blocks:
            return [column == self._gone[f"_key_{number}"] for number, column in enumerate(key)]
        value = key[0].cast("long")
        place = value.bitwiseAND(_IN_BLOCK).cast("int")
        is_same_block = F.shiftright(value, _BLOCK_BITS) == self._gone["_block"]
        return [is_same_block, F.getbit(self._gone["_bits"], place) == 1]


def _blocks(keys: pa.ChunkedArray) -> pa.Table:
    """Returns the blocks of 64 integers that have keys, each with a bit for each key, the lowest for the first one."""
    values = np.unique(keys.cast(pa.int64()).to_numpy())
    blocks = values >> _BLOCK_BITS
    starts = np.flatnonzero(np.diff(blocks, prepend=blocks[0] - 1))
    bits = np.bitwise_or.reduceat(np.int64(1) << (values & _IN_BLOCK), starts)
    return pa.table({"_block": blocks[starts], "_bits": bits})


def quoted(name: str) -> str:
    """Returns the name of a column as Spark reads it: a dot would be a field of a struct."""
    return "`" + name.replace("`", "``") + "`"
