"""The demo: loads real flights into a real server, streams them, and compares every figure with the source."""

from scankv.demo.main import run

__all__ = ["run"]
