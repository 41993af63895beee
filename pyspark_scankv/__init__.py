"""What PySpark imports to find the data source `scankv`: it looks for `DefaultSource` in every package `pyspark_*`."""

from spark_bridge.source import ScanKvDataSource as DefaultSource

__all__ = ["DefaultSource"]
