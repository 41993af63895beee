"""What server and client know about tables, without I/O: names, types, schemas, options, keys and predicates."""
