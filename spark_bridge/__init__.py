"""ScanKV tables in Spark: the data source `scankv`, and a faster path for programs.

    spark.read.format("scankv").option("url", "localhost:7070").load("game.scores")

PySpark discovers the data source through the package `pyspark_scankv`, which is installed together with this one. Where
discovery fails, call `spark.dataSource.register(scankv.spark.ScanKvDataSource)`.
"""

from scankv.model.public_names import set_public_module
from spark_bridge.bootstrap import bootstrap
from spark_bridge.dataframe import scan_dataframe
from spark_bridge.server_queries import aggregate, count, tables, top_n
from spark_bridge.source import ScanKvDataSource
from spark_bridge.union import table

__all__ = ["ScanKvDataSource", "aggregate", "bootstrap", "count", "scan_dataframe", "table", "tables", "top_n"]

set_public_module("scankv.spark", globals(), __all__)
