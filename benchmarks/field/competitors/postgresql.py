"""PostgreSQL, with two clients."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from benchmarks.field.clients.postgresql_client import AdbcClient, PsycopgClient
from benchmarks.field.competitors.competitor import Competitor
from benchmarks.field.competitors.requirements import missing_modules, program, version_printed_by
from benchmarks.field.process import LoopbackServer, find_program, free_port

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.field.clients.field_client import FieldClient

_POSTGRESQL_FOLDERS: Final = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
_POSTGRESQL_USER: Final = "postgres"


class PostgreSql(Competitor):
    """PostgreSQL through psycopg."""

    NAME = "PostgreSQL, psycopg"
    CLIENT: ClassVar[type[FieldClient]] = PsycopgClient
    DURABILITY = "fsync on, synchronous_commit on: the log is synced before a commit returns"
    SETUP = "shared_buffers 1 GB, else defaults; after the writes, a B-tree index; a trigger notifies of changes"
    MODULES: ClassVar[tuple[str, ...]] = ("psycopg",)
    LIBRARIES: ClassVar[tuple[str, ...]] = ("psycopg", "psycopg-binary")

    @classmethod
    def missing(cls) -> str | None:
        if find_program("postgres", *_POSTGRESQL_FOLDERS) is None:
            return "postgres is neither in $PATH nor in /usr/lib/postgresql (Debian: apt-get install postgresql)"
        if os.geteuid() == 0 and not _user_exists(_POSTGRESQL_USER):
            return f"PostgreSQL refuses to run as root, and there is no user {_POSTGRESQL_USER}"
        return missing_modules(*cls.MODULES)

    @classmethod
    def versions(cls) -> str:
        libraries = ", ".join(f"{name} {metadata.version(name)}" for name in cls.LIBRARIES)
        return f"PostgreSQL {version_printed_by(program('postgres', *_POSTGRESQL_FOLDERS))}, {libraries}"

    def start(self) -> tuple[str, Sequence[int]]:
        port, data = free_port(), self.directory / "data"
        user = _POSTGRESQL_USER if os.geteuid() == 0 else None
        if user:
            # The temporary directory of the harness is closed to other users.
            self.directory.parent.chmod(0o711)
            shutil.chown(self.directory, user, user)
        log = self.directory / "postgresql.log"
        initdb = program("initdb", *_POSTGRESQL_FOLDERS)
        subprocess.run(
            [initdb, "--pgdata", str(data), "--username=bench", "--auth=trust", "--encoding=UTF8", "--locale=C"],
            check=True,
            capture_output=True,
            cwd=self.directory,
            user=user,
            group=user,
            extra_groups=[] if user else None,
        )
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": "",
            "fsync": "on",
            "synchronous_commit": "on",
            "shared_buffers": "1GB",
            "max_connections": "300",
        }
        options = [option for name, value in settings.items() for option in ("-c", f"{name}={value}")]
        server = self.stack.enter_context(
            LoopbackServer(
                [program("postgres", *_POSTGRESQL_FOLDERS), "-D", str(data), *options],
                ready="database system is ready to accept connections",
                log=log,
                stop_signal=signal.SIGINT,  # the fast shutdown: it does not wait for clients
                user=user,
            )
        )
        return f"postgresql://bench@127.0.0.1:{port}/postgres", (server.process.pid,)


class PostgreSqlAdbc(PostgreSql):
    """PostgreSQL through ADBC."""

    NAME = "PostgreSQL, ADBC"
    CLIENT = AdbcClient
    SETUP = "shared_buffers 1 GB, else defaults"
    MODULES = ("adbc_driver_postgresql",)
    LIBRARIES = ("adbc-driver-postgresql",)


def _user_exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
