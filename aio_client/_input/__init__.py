"""What callers pass in, checked and converted to Arrow."""
