"""Spark's interface to a streaming query: where it begins, where each micro-batch ends, and what each task reads."""

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
    """`spark.readStream.format("scankv")`: the rows of a table followed by its changes, or changes alone.

    Only the checkpoint knows the position of a query, and the two offsets of a micro-batch determine what it reads.
    One instance plans, in a process that lives as long as the query. Pickled copies of it read, in other processes.
    """

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        """Called by `ScanKvDataSource.streamReader`. Does not contact the server.

        Raises:
            UsageError: An option makes sense only for reading the table as of one instant.
        """
        options.check_stream()
        self._options = options
        self._schema = schema
        self._planner: StreamPlanner | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Returns a constant. The planning of the first micro-batch decides where the query begins."""
        return INITIAL

    def getDefaultReadLimit(self) -> ReadLimit:
        """Returns a limit even if none is set; otherwise Spark would read all initial rows in one micro-batch.

        Spark's limits cannot express all of our options. The planner applies the options when it computes offsets.
        """
        return ReadMaxRows(self._options.max_rows or _MOST)

    def prepareForTriggerAvailableNow(self) -> None:
        """Records where the changes end now; the query ends there."""
        with short_errors():
            self._open_planner().stop_at_latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Returns where the next micro-batch ends; `start` if there is nothing to read.

        Raises:
            ScanKvError: The server no longer has the changes or rows to continue with, the table was dropped and
                created again, or the server cannot be reached.
        """
        with short_errors():
            return self._open_planner().next_end(start, unlimited=isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Returns the last known end of the changelog, for the query's progress report."""
        return None if self._planner is None else self._planner.last_known_end()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Returns what the tasks of a micro-batch read. Planning it again returns the same parts.

        Raises:
            ScanKvError: As `latestOffset`.
        """
        with short_errors():
            return [InputPartition(part) for part in self._open_planner().plan_parts(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows or changes of one part."""
        from spark_bridge.casting import arrow_schema
        from spark_bridge.part_rows import read_part

        with short_errors():
            yield from read_part(partition.value, arrow_schema(self._schema))

    def commit(self, end: dict[str, Any]) -> None:
        """Lets the server drop what lies before `end`. Spark never asks for it again."""
        with short_errors():
            self._open_planner().commit(end)

    def stop(self) -> None:
        """Closes the connection. The server's holds remain, so that the query can continue from its checkpoint."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _open_planner(self) -> StreamPlanner:
        from spark_bridge.stream_planning import StreamPlanner

        if self._planner is None:
            self._planner = StreamPlanner(self._options, self._schema)
        return self._planner
