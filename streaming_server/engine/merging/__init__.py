"""Merge engines: what rows a bucket has after rows with the same keys are written. Pure functions of Arrow data."""
