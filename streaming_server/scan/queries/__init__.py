"""Queries with small results: aggregates and top-N, and the cache of their results."""
