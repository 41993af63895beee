"""How fast ScanKV is, always against something measured in the same run: `python -m benchmarks`."""
