"""How rows, keys and index entries are encoded as bytes."""
