"""Scans, streams of changes and snapshots."""
