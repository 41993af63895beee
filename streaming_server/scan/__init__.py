"""How a scan runs: where its chunks come from, what the stream carries, and which scans are live."""
