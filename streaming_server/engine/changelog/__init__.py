"""Streams of changes, the consumers that follow them, and the retention of the changelog."""
