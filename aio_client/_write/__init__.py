"""Writes, writers, column locks and transactions."""
