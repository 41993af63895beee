"""What tables do: writes with their changelog, lookups, counts and views, over the buckets of the storage room."""
