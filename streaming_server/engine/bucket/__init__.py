"""A bucket in operation: its mutex and commit barrier, group commit, and the rows that writes prepare for it."""
