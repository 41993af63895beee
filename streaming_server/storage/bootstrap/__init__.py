"""The rows of a table that is being bootstrapped, on disk before the table exists."""
