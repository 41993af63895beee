"""Columnar bases on disk: Arrow files that are mapped into memory."""
