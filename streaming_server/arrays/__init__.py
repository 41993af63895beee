"""Algorithms on Arrow arrays that need no Python loop over their values."""
