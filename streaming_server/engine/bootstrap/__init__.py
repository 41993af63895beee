"""Bootstraps: new tables that appear with all their rows."""
