"""Tables in operation: writes, reads, merging, snapshots, changelog and transactions."""
