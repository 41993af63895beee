"""Aggregate functions: what becomes of one column when rows with the same key meet. One file a family."""
