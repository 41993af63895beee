"""What an older PySpark has no interface for is refused with a message that says what to do."""

from __future__ import annotations

import pyspark
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from scankv.model.errors import UsageError
from spark_bridge.source import ScanKvDataSource

OPTIONS = {"url": "127.0.0.1:1", "table": "game.scores", "checkpointLocation": "c"}
SCHEMA = StructType([StructField("id", LongType())])


@pytest.mark.parametrize("version", ["4.0.1", "4.1.4", "4.1.0.dev0"])
def test_an_older_pyspark_follows_no_table(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(UsageError, match=r"no interface to follow a table.*install PySpark 4\.2 or later"):
        ScanKvDataSource(OPTIONS).streamReader(SCHEMA)


def test_the_oldest_pyspark_writes_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.0.1")
    with pytest.raises(UsageError, match=r"no interface to write a stream.*4\.1 or later, or write.*`foreachBatch`"):
        ScanKvDataSource(OPTIONS).streamWriter(SCHEMA, overwrite=False)
