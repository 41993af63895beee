"""The data directory and the files of a table other than its buckets."""
