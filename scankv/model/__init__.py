"""The model of a table, without I/O: names, types, schemas, options, key order, buckets and predicates."""
