"""Reads of the rows of a table: scans, lookups, counts and explanations."""
