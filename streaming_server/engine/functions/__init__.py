"""Aggregators: how one column is merged when rows have the same key. One module for each family."""
