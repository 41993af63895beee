"""Publishes live tables in open formats: reads a table through the client, and keeps a copy of it in files."""
