"""Building columnar bases, and choosing when scans read them."""
