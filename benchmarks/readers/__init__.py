"""The readers of T4 that the benchmarks compare. Each runs in its own process."""
