"""Describes the metrics, from the catalogue that the server writes them by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streaming_server.monitoring.catalog import SERVER_METRICS, STANDARD_METRICS, TABLE_METRICS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streaming_server.monitoring.catalog import Metric


def describe_metrics() -> str:
    """Returns tables of the metrics of the server, of each table, and of the process."""
    standard = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in STANDARD_METRICS.items())
    return (
        f"## The server\n\n{_table(SERVER_METRICS)}\n## Each table\n\n{_table(TABLE_METRICS)}\n"
        f"## The process\n\n| metric | meaning |\n|---|---|\n{standard}"
    )


def _table(metrics: Sequence[Metric]) -> str:
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(lines) + "\n"
