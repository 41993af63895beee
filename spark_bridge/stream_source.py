"""A streaming query over a table, as Spark sees it: where it begins, how far it may go, what each task reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

from spark_bridge.errors import short_errors
from spark_bridge.stream_offset import INITIAL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from spark_bridge.stream_options import StreamOptions
    from spark_bridge.stream_planning import StreamPlanner

_MOST: int = 2**63 - 1


class ScanKvStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("scankv")`: the rows of a table and then its changes, or changes alone.

    Where a query has come is told by its checkpoint alone; what a micro-batch reads, by the two offsets that it lies
    between. One of these plans, in a process that lives as long as the query; pickled copies read, in others.
    """

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        """Called by `ScanKvDataSource.streamReader`; contacts nobody.

        Raises:
            UsageError: An option is only for reading the table as of one instant.
        """
        options.check_stream()
        self._options = options
        self._schema = schema
        self._planner: StreamPlanner | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Always the same: where the query begins is settled with its first micro-batch."""
        return INITIAL

    def getDefaultReadLimit(self) -> ReadLimit:
        """A limit in any case, so that a start from the whole table is not read at once.

        Those of the options go beyond what Spark can be told: they are kept when offsets are made.
        """
        return ReadMaxRows(self._options.max_rows or _MOST)

    def prepareForTriggerAvailableNow(self) -> None:
        """Notes the changes there are now, which the query ends with."""
        with short_errors():
            self._planning().stop_at_latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends; `start`, when there is nothing to read.

        Raises:
            ScanKvError: The changes or rows to go on with are no longer there; the table is another one; or the server
                cannot be reached.
        """
        with short_errors():
            return self._planning().latest(start, unlimited=isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the changelog ended when it was looked at last, for the query's progress."""
        return None if self._planner is None else self._planner.seen()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What the tasks of a micro-batch read; the same however often it is planned.

        Raises:
            ScanKvError: As `latestOffset`.
        """
        with short_errors():
            return [InputPartition(part) for part in self._planning().parts(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows or changes of one part."""
        from spark_bridge.casting import arrow_schema
        from spark_bridge.part_rows import read_part

        with short_errors():
            yield from read_part(partition.value, arrow_schema(self._schema))

    def commit(self, end: dict[str, Any]) -> None:
        """Lets go of what lies before `end`; Spark never asks for it again."""
        with short_errors():
            self._planning().commit(end)

    def stop(self) -> None:
        """Closes the connection. What is kept for the query stays: it may go on from its checkpoint."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _planning(self) -> StreamPlanner:
        from spark_bridge.stream_planning import StreamPlanner

        if self._planner is None:
            self._planner = StreamPlanner(self._options, self._schema)
        return self._planner
