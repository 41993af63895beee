"""Apache Fluss."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.field.clients.fluss_client import FlussClient
from benchmarks.field.competitors.competitor import MEBIBYTE, Competitor
from benchmarks.field.competitors.requirements import missing_modules, program
from benchmarks.field.process import LoopbackServer, disk_bytes, find_program, free_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
            return f"{_fluss_jars()} has no fluss-server-*.jar: get the jars, or set ${_FLUSS_JARS} to their folder"
        return missing_modules("fluss")

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
        return sum(disk_bytes(self.directory / name) for name in ("data", "remote")) / MEBIBYTE

    def _start_server(self, name: str, main: str, settings: Mapping[str, str], *, ready: str) -> LoopbackServer:
        folder = self.directory / name
        folder.mkdir()
        (folder / "server.yaml").write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
        return self._start_java(name, f"org.apache.fluss.server.{main}", ["--configDir", str(folder)], ready=ready)

    def _start_java(self, name: str, main: str, arguments: Sequence[str], *, ready: str) -> LoopbackServer:
        command = [program("java"), "-Xmx512m", "--add-opens=java.base/java.nio=ALL-UNNAMED"]
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
    return Path(os.environ.get(_FLUSS_JARS, "build/fluss-jars"))
