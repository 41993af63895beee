"""Redis."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

from benchmarks.field.clients.redis_client import RedisClient
from benchmarks.field.competitors.competitor import Competitor
from benchmarks.field.competitors.requirements import missing_modules, program, version_printed_by
from benchmarks.field.process import LoopbackServer, find_program, free_port

if TYPE_CHECKING:
    from collections.abc import Sequence


class Redis(Competitor):
    """Redis with an append-only file."""

    NAME = "Redis"
    CLIENT = RedisClient
    DURABILITY = "appendonly yes, appendfsync always: the file is synced before the reply; no snapshots"
    SETUP = "a hash per row; after the writes, a sorted set as the index; a stream for changes"

    @classmethod
    def missing(cls) -> str | None:
        if find_program("redis-server") is None:
            return "redis-server is not in $PATH (Debian: apt-get install redis-server)"
        return missing_modules("redis", "hiredis")

    @classmethod
    def versions(cls) -> str:
        libraries = ", ".join(f"{name} {metadata.version(name)}" for name in ("redis", "hiredis"))
        return f"Redis {version_printed_by(program('redis-server'))}, {libraries}"

    def start(self) -> tuple[str, Sequence[int]]:
        port = free_port()
        command = [program("redis-server"), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(self.directory)]
        command += ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--daemonize", "no"]
        server = self.stack.enter_context(
            LoopbackServer(command, ready="Ready to accept connections", log=self.directory / "redis.log")
        )
        return f"127.0.0.1:{port}", (server.process.pid,)
