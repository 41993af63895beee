"""What README.md shows of Spark runs as it stands there, in a session that was made before, as in `pyspark`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from aio_client import sync
    from tests.support.server_process import ServerProcess

README = Path(__file__).parents[2] / "README.md"
SECTION = re.compile(r"^## From Spark\n(.*?)^## ", re.DOTALL | re.MULTILINE)
SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_snippets_for_spark_run(spark: SparkSession, shared_server: ServerProcess, client: sync.Client) -> None:
    section = SECTION.search(README.read_text())
    assert section is not None
    snippets = "".join(SNIPPET.findall(section[1]))
    assert '"localhost:7070"' in snippets
    columns = pa.schema([("player", pa.string()), ("score", pa.int64()), ("league", pa.string())])
    table = client.create_table("game.scores", columns, primary_key=["player"])
    table.upsert([{"player": f"ann{n}", "score": n, "league": "ab"[n % 2]} for n in range(500)])
    names: dict[str, Any] = {"spark": spark}
    exec(snippets.replace("localhost:7070", shared_server.url), names)
    assert sorted(names["leagues"]) == [("a", 250), ("b", 250)]
    assert names["best"] == [(499,)]
    assert names["rows"] == 399
    assert names["top"][0].score == 499
    assert names["total"] == 500
    assert sorted(client.table("game.best").scan().to_pylist(), key=lambda row: str(row["league"])) == [
        {"league": "a", "best": 498},
        {"league": "b", "best": 499},
    ]
    spark.catalog.dropTempView("scores")
