"""The data source `scankv` of Spark. Light to import: Spark imports it to look for it, also where no table is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from spark_bridge.errors import short_errors
from spark_bridge.frozen_worker import freeze_worker
from spark_bridge.options import ReadOptions
from spark_bridge.sql_tables import is_create_table, plain_columns, read_options, user_options, with_options
from spark_bridge.stream_options import StreamOptions
from spark_bridge.stream_source import ScanKvStreamReader
from spark_bridge.write_options import WriteOptions
from spark_bridge.write_source import ScanKvStreamWriter, ScanKvWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType


class ScanKvDataSource(DataSource):
    """`spark.read.format("scankv")`: a table of a ScanKV server.

    Each query reads the table as of one instant, which all of its tasks, branches and retries share, also where the
    table was loaded several times; the next query reads it as it is then. The options are those of `ReadOptions`.
    """

    @classmethod
    def name(cls) -> str:
        """What `format` is given; Spark ignores its case."""
        return "scankv"

    def schema(self) -> StructType:
        """The columns of the table, or those of option `columns`. Spark asks for them in `load()`.

        Raises:
            ScanKvError: An option is unknown or wrong, the server cannot be reached, or Spark cannot have a column.
        """
        from spark_bridge.planning import described
        from spark_bridge.stream_planning import described_changes

        freeze_worker()
        with short_errors():
            creates = is_create_table(self.options)
            given = user_options(self.options) if creates else self.options
            options = StreamOptions.parse(given)
            found = described_changes(options) if options.row_kinds else described(options.read)
            return with_options(found, given) if creates else found

    def reader(self, schema: StructType) -> ScanKvReader:
        """What reads the table. `schema` is what `schema` said, or what the user gave: then those columns are read."""
        with short_errors():
            options = ReadOptions.of_read(read_options(self.options, schema))
            return ScanKvReader(options, plain_columns(schema))

    def streamReader(self, schema: StructType) -> ScanKvStreamReader:
        """What follows the table's changes. `schema` is as for `reader`."""
        with short_errors():
            options = StreamOptions.of_stream(read_options(self.options, schema))
            return ScanKvStreamReader(options, plain_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> ScanKvWriter:
        """What writes a DataFrame with the columns `schema`; `overwrite` has the rows go that are there."""
        with short_errors():
            return ScanKvWriter(WriteOptions.parse(self.options), schema, replaces=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> ScanKvStreamWriter:
        """What writes the micro-batches of a streaming query. `schema` and `overwrite` are as for `writer`."""
        with short_errors():
            return ScanKvStreamWriter(WriteOptions.parse(self.options), schema, replaces=overwrite)


class ScanKvReader(DataSourceReader):
    """Plans a read, and reads its parts. Picklable; each method may run in another process.

    It has no `pushFilters`: PySpark 4.3 keeps what was pushed with the DataFrame, and so gives one query the rows of
    another.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Called by `ScanKvDataSource.reader`; contacts nobody."""
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Cuts the table into parts, at least one.

        Raises:
            ScanKvError: As `ScanKvDataSource.schema`; or the user's schema is not the table's.
        """
        from spark_bridge.planning import planned

        freeze_worker()
        with short_errors():
            return [InputPartition(part) for part in planned(self._options, self._schema).parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part; in one query the same ones, however often it is read."""
        from spark_bridge.casting import arrow_schema
        from spark_bridge.part_rows import read_part

        with short_errors():
            yield from read_part(partition.value, arrow_schema(self._schema))
