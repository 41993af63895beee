"""The data source `scankv` of Spark.

Keep this module cheap to import: Spark imports it for discovery, even in sessions that read no table of ScanKV.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from spark_bridge.errors import short_errors
from spark_bridge.frozen_worker import freeze_worker
from spark_bridge.options import ReadOptions
from spark_bridge.pyspark_version import require_pyspark
from spark_bridge.sql_tables import attach_options, is_create_table, merge_read_options, strip_options, user_options
from spark_bridge.stream_options import StreamOptions
from spark_bridge.write_options import WriteOptions
from spark_bridge.write_source import ScanKvWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_bridge.stream_source import ScanKvStreamReader
    from spark_bridge.stream_write_source import ScanKvStreamWriter


class ScanKvDataSource(DataSource):
    """`spark.read.format("scankv")`: a table of a ScanKV server.

    Each query reads the table as of one instant. All of its tasks, branches and retries share this instant, even if the
    query loads the table several times. The next query reads a later instant.
    """

    @classmethod
    def name(cls) -> str:
        """Returns the name for `format`, of which Spark ignores the case."""
        return "scankv"

    def schema(self) -> StructType:
        """Returns the columns of the table, or those of option `columns`. Spark calls this in `load()`.

        Raises:
            ScanKvError: An option is unknown or wrong, the server cannot be reached, or a column has no Spark type.
        """
        from spark_bridge.planning import describe_read
        from spark_bridge.stream_planning import describe_changes

        freeze_worker()
        with short_errors():
            creates = is_create_table(self.options)
            given = user_options(self.options) if creates else self.options
            options = StreamOptions.parse(given)
            found = describe_changes(options) if options.row_kinds else describe_read(options.read)
            return attach_options(found, given) if creates else found

    def reader(self, schema: StructType) -> ScanKvReader:
        """Returns the reader of a query. Does not contact the server.

        Args:
            schema: The columns to read: those of `schema()`, or the user's own.

        Raises:
            UsageError: An option is unknown, missing or invalid.
        """
        with short_errors():
            options = ReadOptions.parse_read(merge_read_options(self.options, schema))
            return ScanKvReader(options, strip_options(schema))

    def streamReader(self, schema: StructType) -> ScanKvStreamReader:
        """Returns the reader of a streaming query, which follows the table's changes. Does not contact the server.

        Args:
            schema: As for `reader`.

        Raises:
            UsageError: An option is unknown, missing or invalid, or makes sense only for `spark.read`; or PySpark is
                older than 4.2.
        """
        with short_errors():
            require_pyspark((4, 2), "to follow a table with `readStream`", "read it with `spark.read`")
            from spark_bridge.stream_source import ScanKvStreamReader

            options = StreamOptions.parse_stream(merge_read_options(self.options, schema))
            return ScanKvStreamReader(options, strip_options(schema))

    def writer(self, schema: StructType, overwrite: bool) -> ScanKvWriter:
        """Returns the writer of a DataFrame, which has begun the transaction of the write.

        Args:
            schema: The columns of the DataFrame.
            overwrite: Whether the write replaces all rows of the table.

        Raises:
            ScanKvError: An option is unknown or wrong, the columns do not fit the table, or the server refuses the
                write or cannot be reached.
        """
        with short_errors():
            return ScanKvWriter(WriteOptions.parse(self.options), schema, replaces=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> ScanKvStreamWriter:
        """Returns the writer of a streaming query's micro-batches.

        Args:
            schema: As for `writer`.
            overwrite: Whether each micro-batch replaces all rows of the table.

        Raises:
            ScanKvError: As for `writer`, or PySpark is older than 4.1.
        """
        with short_errors():
            require_pyspark((4, 1), "to write a stream", "write each micro-batch with `foreachBatch`")
            from spark_bridge.stream_write_source import ScanKvStreamWriter

            return ScanKvStreamWriter(WriteOptions.parse(self.options), schema, replaces=overwrite)


class ScanKvReader(DataSourceReader):
    """Plans a read, and reads its parts. Picklable; each method may run in another process.

    It has no `pushFilters`: PySpark 4.3 stores pushed filters with the DataFrame and applies them to other queries on
    it, which then return wrong rows.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Called by `ScanKvDataSource.reader`. Does not contact the server."""
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Divides the table into parts, at least one.

        Raises:
            ScanKvError: As `ScanKvDataSource.schema`, or the user's schema does not fit the table.
        """
        from spark_bridge.planning import plan_read

        freeze_worker()
        with short_errors():
            return [InputPartition(part) for part in plan_read(self._options, self._schema).parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one part. Within one query, reading a part again yields the same rows."""
        from spark_bridge.casting import arrow_schema
        from spark_bridge.part_rows import read_part

        with short_errors():
            yield from read_part(partition.value, arrow_schema(self._schema))
