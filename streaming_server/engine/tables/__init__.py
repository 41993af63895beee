"""The tables of a server."""
