"""Column types, and the conversion of values to them."""
