"""Systems that read files: DuckDB and pypaimon in the client's process, Arrow Flight in a server."""

from __future__ import annotations

import subprocess
from importlib import metadata
from typing import TYPE_CHECKING, Final

from benchmarks.field.clients.duckdb_client import DuckDbClient
from benchmarks.field.clients.flight_client import ArrowFileServer, ArrowFlightClient
from benchmarks.field.clients.paimon_client import PYTHON, PaimonClient, paimon_python
from benchmarks.field.competitors.competitor import MEBIBYTE, Competitor
from benchmarks.field.competitors.requirements import missing_modules
from benchmarks.field.process import disk_bytes
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Sequence


class DuckDb(Competitor):
    """DuckDB over Parquet."""

    NAME = "DuckDB over Parquet"
    CLIENT = DuckDbClient
    DURABILITY = "the file is synced once, after the load"
    SETUP = "in the client's process; pyarrow writes one file with default settings"

    @classmethod
    def missing(cls) -> str | None:
        return missing_modules("duckdb")

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
        return disk_bytes(self.directory / "warehouse") / MEBIBYTE


_PAIMON_VERSIONS: Final = """
from importlib.metadata import distributions
names = ("pypaimon", "pypaimon-rust", "pyarrow")
found = {each.name.lower().replace("_", "-"): each.version for each in distributions()}
print(", ".join(f"{name} {found[name]}" for name in names if name in found))
"""
