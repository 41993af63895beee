"""Positions in a changelog, and the columns that describe a change."""
