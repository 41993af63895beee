"""The systems of the comparison: what each needs, how it is set up, and where its data is."""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Self

from benchmarks.field.clients.duckdb_client import DuckDbClient
from benchmarks.field.clients.flight_client import ArrowFileServer, ArrowFlightClient
from benchmarks.field.clients.fluss_client import FlussClient
from benchmarks.field.clients.paimon_client import PYTHON, PaimonClient, paimon_python
from benchmarks.field.clients.postgresql_client import AdbcClient, PsycopgClient
from benchmarks.field.clients.redis_client import RedisClient
from benchmarks.field.clients.scankv_client import ColumnarBaseClient, ScanKvClient
from benchmarks.field.process import LoopbackServer, disk_bytes, find_program, free_port
from benchmarks.proc import tree_bytes, tree_cpu_seconds
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.field.clients.field_client import FieldClient

_MEBIBYTE: Final = 1 << 20


class Competitor:
    """One system: its server, if it has one, and its client, each in a process of its own.

    Entering starts both with an empty data directory, and does not wait for the client; exiting stops both.

    Args:
        directory: A directory that does not exist yet, in which the system keeps everything.
        rows: The number of rows of T4.
        buckets: The number of buckets of the table.
    """

    NAME: ClassVar[str]
    CLIENT: ClassVar[type[FieldClient]]
    DURABILITY: ClassVar[str]
    SETUP: ClassVar[str]
    HAS_BUCKETS: ClassVar[bool] = False

    def __init__(self, directory: Path, rows: int, buckets: int) -> None:
        self.directory = directory
        self.rows = rows
        self.buckets = buckets
        self._stack = ExitStack()
        self._server_ids: Sequence[int] = ()

    @classmethod
    def missing(cls) -> str | None:
        """Returns why the system cannot be measured here, or None if it can."""
        return None

    @classmethod
    def versions(cls) -> str:
        """Returns the versions of server and client."""
        raise NotImplementedError

    def start(self) -> tuple[str, Sequence[int]]:
        """Starts the server. Returns the address for the client, and the ids of the server's processes.

        `self.stack` stops at the end what this method enters.
        """
        raise NotImplementedError

    @property
    def stack(self) -> ExitStack:
        """Closes everything at the end."""
        return self._stack

    def __enter__(self) -> Self:
        self.directory.mkdir()
        with ExitStack() as undo:
            undo.push(self._stack)
            address, self._server_ids = self.start()
            self.client: Worker[FieldClient] = self._stack.enter_context(
                Worker(self.CLIENT, address, self.rows, self.buckets)
            )
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def cpu_seconds(self) -> tuple[float, float]:
        """Returns the processor time of the client and of the server so far."""
        return tree_cpu_seconds(self.client.pid), sum(map(tree_cpu_seconds, self._server_ids))

    def memory_mebibytes(self) -> tuple[float, float]:
        """Returns the resident memory of the client and of the server now."""
        return tree_bytes(self.client.pid) / _MEBIBYTE, sum(map(tree_bytes, self._server_ids)) / _MEBIBYTE

    def disk_mebibytes(self) -> float:
        """Returns what the data takes on disk, logs included."""
        return disk_bytes(self.directory) / _MEBIBYTE


class ScanKv(Competitor):
    """ScanKV, reading from RocksDB."""

    NAME = "ScanKV"
    CLIENT: ClassVar[type[FieldClient]] = ScanKvClient
    DURABILITY = "every write is synced before it is acknowledged; concurrent ones share a sync (group commit)"
    SETUP = "default settings"
    HAS_BUCKETS = True

    @classmethod
    def versions(cls) -> str:
        return f"scankv {metadata.version('scankv')}, rocksdict {metadata.version('rocksdict')}"

    def start(self) -> tuple[str, Sequence[int]]:
        server = self.stack.enter_context(BenchmarkServer(self.directory / "data", **self.settings()))
        return server.url, (server.pid,)

    def settings(self) -> dict[str, float]:
        """Returns the settings that differ from their defaults."""
        return {}


class ScanKvColumnar(ScanKv):
    """ScanKV, reading from columnar bases."""

    NAME = "ScanKV, columnar base"
    CLIENT = ColumnarBaseClient
    SETUP = "default settings, but bases are built for small buckets, too, and at once"

    def settings(self) -> dict[str, float]:
        return {"base_min_rows": 1, "base_changed_share": 10, "base_cpu_share": 1}


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
        return _missing_modules("redis", "hiredis")

    @classmethod
    def versions(cls) -> str:
        libraries = ", ".join(f"{name} {metadata.version(name)}" for name in ("redis", "hiredis"))
        return f"Redis {_version_printed_by(_program('redis-server'))}, {libraries}"

    def start(self) -> tuple[str, Sequence[int]]:
        port = free_port()
        command = [_program("redis-server"), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(self.directory)]
        command += ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--daemonize", "no"]
        server = self.stack.enter_context(
            LoopbackServer(command, ready="Ready to accept connections", log=self.directory / "redis.log")
        )
        return f"127.0.0.1:{port}", (server.process.pid,)


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
        return _missing_modules(*cls.MODULES)

    @classmethod
    def versions(cls) -> str:
        libraries = ", ".join(f"{name} {metadata.version(name)}" for name in cls.LIBRARIES)
        return f"PostgreSQL {_version_printed_by(_program('postgres', *_POSTGRESQL_FOLDERS))}, {libraries}"

    def start(self) -> tuple[str, Sequence[int]]:
        port, data = free_port(), self.directory / "data"
        user = _POSTGRESQL_USER if os.geteuid() == 0 else None
        if user:
            # The temporary directory of the harness is closed to other users.
            self.directory.parent.chmod(0o711)
            shutil.chown(self.directory, user, user)
        log = self.directory / "postgresql.log"
        initdb = _program("initdb", *_POSTGRESQL_FOLDERS)
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
                [_program("postgres", *_POSTGRESQL_FOLDERS), "-D", str(data), *options],
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


class DuckDb(Competitor):
    """DuckDB over Parquet."""

    NAME = "DuckDB over Parquet"
    CLIENT = DuckDbClient
    DURABILITY = "the file is synced once, after the load"
    SETUP = "in the client's process; pyarrow writes one file with default settings"

    @classmethod
    def missing(cls) -> str | None:
        return _missing_modules("duckdb")

    @classmethod
    def versions(cls) -> str:
        return f"duckdb {metadata.version('duckdb')}, pyarrow {metadata.version('pyarrow')}"

    def start(self) -> tuple[str, Sequence[int]]:
        return str(self.directory), ()


class ArrowFlight(Competitor):
    """Arrow Flight over an Arrow file."""

    NAME = "Arrow Flight"
    CLIENT = ArrowFlightClient
    DURABILITY = "the file is synced once, after the load"
    SETUP = "pyarrow.flight serves a memory-mapped Arrow file: the cost of moving the rows, without a database"

    @classmethod
    def versions(cls) -> str:
        return f"pyarrow {metadata.version('pyarrow')}"

    def start(self) -> tuple[str, Sequence[int]]:
        server = self.stack.enter_context(Worker(ArrowFileServer, str(self.directory)))
        return server.call(ArrowFileServer.url), (server.pid,)


class Paimon(Competitor):
    """pypaimon over local files."""

    NAME = "pypaimon"
    CLIENT = PaimonClient
    DURABILITY = "files are not synced; pypaimon has no setting for it"
    SETUP = "in the client's process, over local files in Parquet; its Rust reader, if installed"

    @classmethod
    def missing(cls) -> str | None:
        python = paimon_python()
        if subprocess.run([python, "-c", "import pypaimon"], capture_output=True, check=False).returncode:
            return f"{python} does not have pypaimon: set ${PYTHON} to an interpreter that has it"
        return None

    @classmethod
    def versions(cls) -> str:
        return subprocess.run(
            [paimon_python(), "-c", _PAIMON_VERSIONS], check=True, capture_output=True, text=True
        ).stdout.strip()

    def start(self) -> tuple[str, Sequence[int]]:
        return str(self.directory), ()

    def disk_mebibytes(self) -> float:
        return disk_bytes(self.directory / "warehouse") / _MEBIBYTE


_PAIMON_VERSIONS: Final = """
from importlib.metadata import distributions
names = ("pypaimon", "pypaimon-rust", "pyarrow")
found = {each.name.lower().replace("_", "-"): each.version for each in distributions()}
print(", ".join(f"{name} {found[name]}" for name in names if name in found))
"""


class Fluss(Competitor):
    """Apache Fluss: ZooKeeper, a coordinator and a tablet server."""

    NAME = "Fluss"
    CLIENT = FlussClient
    DURABILITY = "acks=all with one replica; log.flush.interval-messages 1: the log is synced after every append"
    SETUP = (
        "ZooKeeper, coordinator and tablet server, 512 MiB of heap each; writes wait 1 ms for a batch (default 100), "
        "readers of changes ask every 10 ms (default 500), lookups wait 100 ms (pyfluss has no setting)"
    )
    HAS_BUCKETS = True

    @classmethod
    def missing(cls) -> str | None:
        if find_program("java") is None:
            return "java is not in $PATH"
        if not list(_fluss_jars().glob("fluss-server-*.jar")):
            return f"set ${_FLUSS_JARS} to a folder with the jars of fluss-server"
        return _missing_modules("fluss")

    @classmethod
    def versions(cls) -> str:
        jar = next(_fluss_jars().glob("fluss-server-*.jar"))
        return f"fluss-server {jar.stem.removeprefix('fluss-server-')}, pyfluss {metadata.version('pyfluss')}"

    def start(self) -> tuple[str, Sequence[int]]:
        keeper, coordinator, tablets = free_port(), free_port(), free_port()
        (self.directory / "zookeeper.cfg").write_text(
            f"tickTime=2000\ndataDir={self.directory / 'zookeeper'}\nclientPort={keeper}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
        )
        (self.directory / "log4j2.xml").write_text(_LOG4J)
        package = "org.apache.fluss.shaded.zookeeper3.org.apache.zookeeper.server.quorum"
        servers = [
            self._start_java(
                "zookeeper", f"{package}.QuorumPeerMain", ["zookeeper.cfg"], ready="ZooKeeper audit is disabled"
            )
        ]
        common = {
            "zookeeper.address": f"127.0.0.1:{keeper}",
            "remote.data.dir": str(self.directory / "remote"),
            "data.dir": str(self.directory / "data"),
            "default.replication.factor": "1",
        }
        servers.append(
            self._start_server(
                "coordinator",
                "coordinator.CoordinatorServer",
                {**common, "bind.listeners": f"FLUSS://127.0.0.1:{coordinator}"},
                ready="Start up rebalance manager",
            )
        )
        servers.append(
            self._start_server(
                "tablets",
                "tablet.TabletServer",
                {
                    **common,
                    "bind.listeners": f"FLUSS://127.0.0.1:{tablets}",
                    "tablet-server.id": "0",
                    "log.flush.interval-messages": "1",
                },
                ready="Registered tablet server 0",
            )
        )
        return f"127.0.0.1:{coordinator}", [server.process.pid for server in servers]

    def disk_mebibytes(self) -> float:
        return sum(disk_bytes(self.directory / name) for name in ("data", "remote")) / _MEBIBYTE

    def _start_server(self, name: str, main: str, settings: Mapping[str, str], *, ready: str) -> LoopbackServer:
        folder = self.directory / name
        folder.mkdir()
        (folder / "server.yaml").write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
        return self._start_java(name, f"org.apache.fluss.server.{main}", ["--configDir", str(folder)], ready=ready)

    def _start_java(self, name: str, main: str, arguments: Sequence[str], *, ready: str) -> LoopbackServer:
        command = [_program("java"), "-Xmx512m", "--add-opens=java.base/java.nio=ALL-UNNAMED"]
        command += [f"-Dlog4j.configurationFile={self.directory / 'log4j2.xml'}", "-cp", f"{_fluss_jars()}/*", main]
        return self.stack.enter_context(
            LoopbackServer([*command, *arguments], ready=ready, log=self.directory / f"{name}.log")
        )


_FLUSS_JARS: Final = "SCANKV_BENCH_FLUSS_JARS"
"""The environment variable for the folder with the jars."""

_LOG4J: Final = """<Configuration><Appenders><Console name="out"><PatternLayout pattern="%d %p %c{1} %m%n"/></Console>
</Appenders><Loggers><Root level="info"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""


def _fluss_jars() -> Path:
    return Path(os.environ.get(_FLUSS_JARS, "fluss-jars"))


def _missing_modules(*names: str) -> str | None:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return f"{' and '.join(missing)} not installed: pip install 'scankv[bench-field]'" if missing else None


def _program(name: str, *folders: Path) -> str:
    found = find_program(name, *folders)
    assert found is not None, f"{name} was found when the harness started"
    return found


def _version_printed_by(program: str) -> str:
    printed = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"\d+(\.\d+)+", printed)
    return found.group() if found else printed.strip()


def _user_exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


COMPETITORS: Final[Mapping[str, type[Competitor]]] = {
    "scankv": ScanKv,
    "scankv-columnar": ScanKvColumnar,
    "redis": Redis,
    "postgresql": PostgreSql,
    "postgresql-adbc": PostgreSqlAdbc,
    "duckdb": DuckDb,
    "flight": ArrowFlight,
    "paimon": Paimon,
    "fluss": Fluss,
}
"""The systems by the names of the command line. The first one is the reference of the ratios."""
