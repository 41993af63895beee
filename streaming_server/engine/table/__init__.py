"""One table in operation."""
