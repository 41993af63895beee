"""The connection to a server, and its tables."""
