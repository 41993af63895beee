"""Backups: files of consistent instants of all tables, in a directory or an object store."""
