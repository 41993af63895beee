"""Runs `scankv serve` in its own process, as users do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from streaming_server.testing import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

_DRAIN_SECONDS: Final = 600.0


class BenchmarkServer(ServerProcess):
    """A server with default settings except for those given. Leaving `with` drains it.

    Args:
        data: The data directory.
        **settings: Settings of `ServerConfig` that differ from their defaults.
    """

    def __init__(self, data: Path, **settings: float | str) -> None:
        arguments = [f"--set={name}={value}" for name, value in settings.items()]
        super().__init__(data, *arguments)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self.process.pid

    def __exit__(self, *_: object) -> None:
        """Drains the server, so that its buckets are closed in order."""
        code = self.stop(_DRAIN_SECONDS)
        if code != 0:
            raise RuntimeError(f"the server ended with code {code}:\n{self.log}")
