"""Upserts, deletes and lookups of single buckets, and column locks."""
