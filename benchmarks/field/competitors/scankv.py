"""ScanKV itself."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, ClassVar

from benchmarks.field.clients.scankv_client import FirstScanClient, ScanKvClient
from benchmarks.field.competitors.competitor import Competitor
from benchmarks.server import BenchmarkServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.field.clients.field_client import FieldClient


class ScanKv(Competitor):
    """ScanKV with default settings and options. Scans are those after the first ones, which have columnar bases."""

    NAME = "ScanKV"
    CLIENT: ClassVar[type[FieldClient]] = ScanKvClient
    DURABILITY = "every write is synced before it is acknowledged; concurrent ones share a sync (group commit)"
    SETUP = "default settings; buckets of more than 100,000 rows have columnar bases after their first scan"
    HAS_BUCKETS = True

    @classmethod
    def versions(cls) -> str:
        return f"scankv {metadata.version('scankv')}, rocksdict {metadata.version('rocksdict')}"

    def start(self) -> tuple[str, Sequence[int]]:
        server = self.stack.enter_context(BenchmarkServer(self.directory / "data"))
        return server.url, (server.pid,)


class ScanKvFirst(ScanKv):
    """ScanKV, as it reads tables that have no columnar bases."""

    NAME = "ScanKV, first scan"
    CLIENT = FirstScanClient
    SETUP = "columnar_base=off, so that every scan reads RocksDB, as the first scan of a table does"
