"""One bucket on disk: rows, index entries, changelog and writer states, changed atomically."""
