"""Scans as tables of other libraries."""
