"""Encodes keys so that byte order is column order, computes with ranges of keys, and finds the bucket of a key."""
