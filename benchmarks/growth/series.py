"""The series that `python -m benchmarks.growth` measures, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.growth import index_lookups, reads, resources, writes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.bench import Benchmark

SERIES: Final[Mapping[str, Benchmark]] = {
    "connections": writes.connections,
    "columns": writes.columns,
    "scattered": writes.scattered,
    "one_column": reads.one_column,
    "top_by_key": reads.top_by_key,
    "queue": reads.queue,
    "index": index_lookups.index,
    "retention": resources.retention,
    "tables": resources.tables,
    "large_rows": resources.large_rows,
}
