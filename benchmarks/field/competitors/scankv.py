"""ScanKV itself."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, ClassVar

from benchmarks.field.clients.scankv_client import ColumnarBaseClient, ScanKvClient
from benchmarks.field.competitors.competitor import Competitor
from benchmarks.server import BenchmarkServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.field.clients.field_client import FieldClient


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
