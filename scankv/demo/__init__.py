"""The demonstration: real flights through a real server, every figure compared with the source."""

from scankv.demo.main import run

__all__ = ["run"]
