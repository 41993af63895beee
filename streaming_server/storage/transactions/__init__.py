"""Transactions on disk: staged requests, and the log of decisions."""
