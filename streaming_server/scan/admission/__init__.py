"""Which scans and waiting calls the server accepts, and which are live."""
