"""Backups of all tables, and their restoration."""
