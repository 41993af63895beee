"""Threads and background tasks."""
