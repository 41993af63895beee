"""Measures how fast ScanKV is, relative to something that is measured in the same run: `python -m benchmarks`."""
