"""Queries with small results: lookups, counts, aggregates, top-N and watches."""
