"""Reading rows from a columnar base and its delta."""
