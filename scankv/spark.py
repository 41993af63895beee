"""ScanKV tables in Spark. Needs the extra `spark`.

    spark.read.format("scankv").option("url", "localhost:7070").load("game.scores")

PySpark finds the data source by its name. This module has the other functions for Spark programs.
"""

from spark_bridge import *  # noqa: F403  # a test compares the names
from spark_bridge import __all__ as __all__
