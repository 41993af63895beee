"""The experiments behind the decisions in docs/decisions, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.experiments import chunk_rows, compression, metrics, sending, tokens

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.bench import Benchmark

EXPERIMENTS: Final[Mapping[str, Benchmark]] = {
    "compression": compression.run,
    "chunk-rows": chunk_rows.run,
    "sending": sending.run,
    "metrics": metrics.run,
    "tokens": tokens.run,
}
