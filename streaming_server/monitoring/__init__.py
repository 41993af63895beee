"""Metrics for monitoring systems: which exist, where their values come from, and the HTTP port that serves them."""
