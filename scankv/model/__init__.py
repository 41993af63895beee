"""What a table is, without I/O: names, types, schemas, options, key order, buckets, and what fits into them."""
