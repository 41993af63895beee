"""Admission of scans and waiting calls, and the registry of live scans."""
