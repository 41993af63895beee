"""Describes the metrics, from the catalogue that the server writes them by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streaming_server.monitoring.catalog import SERVER_METRICS, STANDARD_METRICS, TABLE_METRICS

from .summary_tables import summary_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streaming_server.monitoring.catalog import Metric


def describe_metrics() -> str:
    """Returns tables of the metrics of the server, of each table, and of the process."""
    standard = [(f"`{name}`", meaning) for name, meaning in STANDARD_METRICS.items()]
    return (
        f"## The server\n\n{_table(SERVER_METRICS)}\n## Each table\n\n{_table(TABLE_METRICS)}\n"
        f"## The process\n\n{summary_table('metric | meaning', standard)}"
    )


def _table(metrics: Sequence[Metric]) -> str:
    rows = [
        (f"`{metric.name}`", metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.help)
        for metric in metrics
    ]
    return summary_table("metric | kind | labels | meaning", rows, "metrics")
