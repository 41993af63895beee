"""`AdminService`: figures of the whole server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from protos.scankv.v1 import admin_pb2, admin_pb2_grpc
from streaming_server.services.errors import mapped_errors

if TYPE_CHECKING:
    import grpc

    from streaming_server.engine.tables import Tables
    from streaming_server.scan.registry import ScanRegistry
    from streaming_server.services.write import WriteService


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Serves statistics. See `protos/scankv/v1/admin.proto` for what they mean."""

    def __init__(
        self, tables: Tables, registry: ScanRegistry, writes: WriteService, incarnation: str, version: str
    ) -> None:
        self._tables = tables
        self._registry = registry
        self._writes = writes
        self._incarnation = incarnation
        self._version = version
        self._started = time.monotonic()

    async def Stats(
        self,
        request: admin_pb2.StatsRequest,
        context: grpc.aio.ServicerContext[admin_pb2.StatsRequest, admin_pb2.StatsResponse],
    ) -> admin_pb2.StatsResponse:
        """The figures of now."""
        async with mapped_errors(request, context):
            buckets = [bucket for table in self._tables.live_tables() for bucket in table.buckets]
            memory = _memory()
            return admin_pb2.StatsResponse(
                version=self._version,
                incarnation=self._incarnation,
                uptime_millis=int((time.monotonic() - self._started) * 1000),
                tables=len(self._tables),
                open_buckets=sum(bucket.is_open for bucket in buckets),
                live_scans=len(self._registry),
                scans_started=self._registry.started,
                rows_scanned=self._registry.rows_scanned,
                bytes_returned=self._registry.bytes_returned,
                rows_written=self._writes.rows_written,
                log_syncs=sum(bucket.syncs for bucket in buckets),
                resident_bytes=memory.get("VmRSS", 0),
                peak_resident_bytes=memory.get("VmHWM", 0),
                damaged_buckets=[f"{bucket.table}/{bucket.number}" for bucket in buckets if bucket.damage is not None],
            )
        raise AssertionError("mapped_errors ends the call")


def _memory() -> dict[str, int]:
    """The memory lines of `/proc/self/status`, in bytes; empty where there is no such file."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines if line.startswith("Vm"))
    return {name: int(value.split()[0]) * 1024 for name, value in pairs}
