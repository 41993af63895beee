"""The `scankv` command: a server to start, and tables to fill, read and look after from a terminal."""

from scankv.cli.app import main

__all__ = ["main"]
