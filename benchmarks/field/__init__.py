"""Compares ScanKV with other systems on the same rows, in one run: `python -m benchmarks.field`."""
