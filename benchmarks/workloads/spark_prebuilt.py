"""Sources for Spark that read nothing: they yield a prebuilt batch, as a data source and for `mapInArrow`."""

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
"""The default number of tasks, which option `parts` overrides."""

_BATCH_ROWS: Final = 65_536


class Prebuilt(DataSource):
    """A data source with T4's columns that reads nothing."""

    @classmethod
    def name(cls) -> str:
        """Returns the name for `format`."""
        return "prebuilt"

    def schema(self) -> StructType:
        """Returns the columns of T4."""
        return spark_schema(t4.SCHEMA)

    def reader(self, schema: StructType) -> PrebuiltReader:
        """Returns a reader of as many rows as option `rows` says."""
        return PrebuiltReader(int(self.options["rows"]), int(self.options.get("parts", PARTS)))


class PrebuiltReader(DataSourceReader):
    """Yields the same batch repeatedly."""

    def __init__(self, rows: int, parts: int) -> None:
        self._rows = rows
        self._parts = parts

    def partitions(self) -> list[InputPartition]:
        """Returns one partition for each task."""
        return [InputPartition(number) for number in range(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one task."""
        return _yield_batches(_share(self._rows, self._parts, partition.value))


def yield_rows(numbers: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yields the rows of the tasks whose numbers `mapInArrow` passes."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from _yield_batches(_share(rows, PARTS, number))


def _share(rows: int, parts: int, number: int) -> int:
    return rows // parts + (number < rows % parts)


def _yield_batches(rows: int) -> Iterator[pa.RecordBatch]:
    batch = _batch()
    for left in range(rows, 0, -_BATCH_ROWS):
        yield batch.slice(0, min(left, _BATCH_ROWS))


@cache
def _batch() -> pa.RecordBatch:
    # Cached, so that each worker process makes the batch once.
    return cast_rows(t4.rows(0, _BATCH_ROWS), arrow_schema(spark_schema(t4.SCHEMA)))
