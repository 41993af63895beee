"""The changelog of a bucket on disk: log offsets, records and segments."""
