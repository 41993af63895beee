"""What Spark reads when nothing is read: batches that its workers keep, as a data source and for `mapInArrow`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from benchmarks import t4
from spark_bridge.casting import arrow_schema, cast_rows
from spark_bridge.types import spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

PARTS: Final = 4
"""Tasks that share the rows out, unless the option `parts` says how many."""

_BATCH_ROWS: Final = 65_536


class Prebuilt(DataSource):
    """A data source of T4's columns that reads nothing."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return "prebuilt"

    def schema(self) -> StructType:
        """T4's."""
        return spark_schema(t4.SCHEMA)

    def reader(self, schema: StructType) -> PrebuiltReader:
        """Of as many rows as the option says."""
        return PrebuiltReader(int(self.options["rows"]), int(self.options.get("parts", PARTS)))


class PrebuiltReader(DataSourceReader):
    """Yields one batch again and again."""

    def __init__(self, rows: int, parts: int) -> None:
        """So many rows in so many tasks."""
        self._rows = rows
        self._parts = parts

    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        return [InputPartition(number) for number in range(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one of them."""
        return _yielded(_share(self._rows, self._parts, partition.value))


def batches_for(numbers: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of the tasks whose numbers come, for `mapInArrow`."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from _yielded(_share(rows, PARTS, number))


def _share(rows: int, parts: int, number: int) -> int:
    return rows // parts + (number < rows % parts)


def _yielded(rows: int) -> Iterator[pa.RecordBatch]:
    batch = _batch()
    for left in range(rows, 0, -_BATCH_ROWS):
        yield batch.slice(0, min(left, _BATCH_ROWS))


@cache
def _batch() -> pa.RecordBatch:
    """Made once in each worker process."""
    return cast_rows(t4.rows(0, _BATCH_ROWS), arrow_schema(spark_schema(t4.SCHEMA)))
