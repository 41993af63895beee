"""The main calls, each with the type of its result, as test_main_types.py compares it with what type checkers see."""

from typing import reveal_type

import pyarrow as pa

import scankv.sync
from scankv import ScanSource, StartFrom, StopAt, col, connect


async def call_asynchronous_client() -> None:
    async with connect("localhost:7070") as client:
        reveal_type(client)  # scankv.Client
        table = await client.table("game.scores")
        reveal_type(table)  # scankv.Table
        reveal_type(await client.tables())  # list[scankv.Table]
        reveal_type(await client.create_table("a.b", pa.schema([]), primary_key=["a"]))  # scankv.Table
        reveal_type(await client.stats())  # scankv.ServerStats
        reveal_type(table.schema)  # pyarrow.Schema
        reveal_type(await table.get("ann"))  # dict[str, Any] | None
        reveal_type(await table.lookup(["ann"]))  # pyarrow.Table
        reveal_type(await table.lookup(["ann"], with_version=True))  # scankv.VersionedRows
        reveal_type(await table.count())  # int
        reveal_type(await table.top_n(10, order_by="score"))  # pyarrow.Table
        reveal_type(await table.aggregate({"score": ["sum"]}))  # pyarrow.Table
        reveal_type(await table.upsert([{"player": "ann"}]))  # scankv.WriteResult
        reveal_type(await table.delete("ann"))  # scankv.WriteResult
        scan = table.scan(where=col("score") > 1)
        reveal_type(scan)  # scankv.Scan
        reveal_type(scan.select("player").limit(1))  # scankv.Scan
        reveal_type(await scan.to_arrow())  # pyarrow.Table
        reveal_type(await scan.to_pandas())  # pandas.DataFrame
        reveal_type(await scan.to_polars())  # polars.DataFrame
        reveal_type(await scan.to_polars(lazy=True))  # polars.LazyFrame
        reveal_type(await scan.to_pylist())  # list[dict[str, Any]]
        reveal_type(await scan.splits(2))  # list[scankv.Scan]
        reveal_type(await scan.explain())  # scankv.ScanExplanation
        async with scan.stream() as stream:
            reveal_type(stream)  # scankv.ScanStream
            reveal_type(stream.resume_token)  # bytes | None
            async for rows in stream:
                reveal_type(rows)  # pyarrow.RecordBatch
        reveal_type(table.changes(StartFrom.FULL, stop=StopAt.LATEST))  # scankv.Scan
        reveal_type(scan.with_source(ScanSource.LOG))  # scankv.Scan
        async with table.snapshot() as snapshot:
            reveal_type(snapshot)  # scankv.Snapshot
        async with table.writer() as writer:
            reveal_type(writer)  # scankv.Writer
        async with client.transaction() as transaction:
            reveal_type(transaction)  # scankv.Transaction
        reveal_type(await client.sql("select 1").to_arrow())  # pyarrow.Table
        reveal_type(await client.sql("select 1").to_pandas())  # pandas.DataFrame
        async for top in table.watch_top_n(10, order_by="score"):
            reveal_type(top.entered)  # pyarrow.Table


def call_blocking_client() -> None:
    with scankv.sync.connect("localhost:7070") as client:
        reveal_type(client)  # scankv.sync.Client
        table = client.table("game.scores")
        reveal_type(table)  # scankv.sync.Table
        reveal_type(table.get("ann"))  # dict[str, Any] | None
        reveal_type(table.lookup(["ann"]))  # pyarrow.Table
        reveal_type(table.top_n(10, order_by="score"))  # pyarrow.Table
        reveal_type(table.upsert([{"player": "ann"}]))  # scankv.WriteResult
        scan = table.scan()
        reveal_type(scan)  # scankv.sync.Scan
        reveal_type(scan.to_arrow())  # pyarrow.Table
        reveal_type(scan.to_pandas())  # pandas.DataFrame
        reveal_type(scan.to_polars())  # polars.DataFrame
        for rows in scan:
            reveal_type(rows)  # pyarrow.RecordBatch
        with table.snapshot() as snapshot:
            reveal_type(snapshot)  # scankv.sync.Snapshot
        with client.transaction() as transaction:
            reveal_type(transaction)  # scankv.sync.Transaction
        reveal_type(client.sql("select 1").to_arrow())  # pyarrow.Table
