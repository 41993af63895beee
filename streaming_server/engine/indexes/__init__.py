"""Building secondary indexes in the background."""
