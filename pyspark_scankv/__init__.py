"""Lets PySpark find the data source `scankv`: it looks for `DefaultSource` in every installed package `pyspark_*`."""

from spark_bridge.source import ScanKvDataSource as DefaultSource

__all__ = ["DefaultSource"]
