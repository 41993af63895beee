"""The bytes of a row: the location of each column, and single rows as Python values."""
