"""The benchmarks with the figures that ScanKV must reach, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.workloads import (
    backups,
    bases,
    bootstrap,
    changes,
    consumers,
    dashboards,
    defaults,
    deletes,
    evolution,
    expiry,
    fairness,
    few_rows,
    http,
    latency,
    leaderboard,
    load,
    memory,
    merges,
    net,
    one_row_commits,
    open_buckets,
    partitions,
    pin,
    predicate,
    projection,
    publish,
    scan,
    shares,
    tail,
    ticker,
    tls,
    top_n,
    transactions,
    untracked,
    upsert,
    worker_processes,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.bench import Bench, Benchmark, Result


def _spark(bench: Bench) -> Result:
    # Imported on use; otherwise the worker processes of all benchmarks would import PySpark.
    from benchmarks.workloads import spark

    return spark.run(bench)


def _spark_union(bench: Bench) -> Result:
    from benchmarks.workloads import spark_union

    return spark_union.run(bench)


WORKLOADS: Final[Mapping[str, Benchmark]] = {
    "scan": scan.run,
    "tls": tls.run,
    "latency": latency.run,
    "fairness": fairness.run,
    "http": http.run,
    "memory": memory.run,
    "shares": shares.run,
    "defaults": defaults.run,
    "upsert": upsert.run,
    "untracked": untracked.run,
    "bootstrap": bootstrap.run,
    "deletes": deletes.run,
    "evolution": evolution.run,
    "expiry": expiry.run,
    "partitions": partitions.run,
    "backups": backups.run,
    "workers": worker_processes.run,
    "transactions": transactions.run,
    "few-rows": few_rows.run,
    "load": load.run,
    "merges": merges.run,
    "pin": pin.run,
    "open-buckets": open_buckets.run,
    "top-n": top_n.run,
    "predicate": predicate.run,
    "projection": projection.run,
    "bases": bases.run,
    "changes": changes.run,
    "tail": tail.run,
    "ticker": ticker.run,
    "dashboards": dashboards.run,
    "leaderboard": leaderboard.run,
    "consumers": consumers.run,
    "one-row-commits": one_row_commits.run,
    "net": net.run,
    "publish": publish.run,
    "spark": _spark,
    "spark-union": _spark_union,
}

ON_REQUEST: Final = frozenset(
    {"dashboards", "leaderboard", "consumers", "one-row-commits", "net", "publish", "spark", "spark-union"}
)
"""Benchmarks that take long or need Java or Streamlit. They run only if the command line names them."""
