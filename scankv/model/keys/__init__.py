"""Keys as bytes in the order of their columns, ranges of keys, and the bucket of a key."""
