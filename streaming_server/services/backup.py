"""`BackupService`: backups of all tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.v1 import backup_pb2, backup_pb2_grpc
from streaming_server.services.errors import map_errors

if TYPE_CHECKING:
    import grpc

    from streaming_server.engine.tables.tables import Tables


class BackupService(backup_pb2_grpc.BackupServiceServicer):
    """Serves backups. See `protos/scankv/v1/backup.proto` for the contract."""

    def __init__(self, tables: Tables) -> None:
        self._backups = tables.backups

    async def CreateBackup(
        self,
        request: backup_pb2.CreateBackupRequest,
        context: grpc.aio.ServicerContext[backup_pb2.CreateBackupRequest, backup_pb2.CreateBackupResponse],
    ) -> backup_pb2.CreateBackupResponse:
        async with map_errors(request, context):
            number = self._backups.create()
        return backup_pb2.CreateBackupResponse(number=number)

    async def GetBackupStatus(
        self,
        request: backup_pb2.GetBackupStatusRequest,
        context: grpc.aio.ServicerContext[backup_pb2.GetBackupStatusRequest, backup_pb2.BackupStatus],
    ) -> backup_pb2.BackupStatus:
        async with map_errors(request, context):
            status = self._backups.progress
        error = status.error
        return backup_pb2.BackupStatus(
            number=status.number,
            running=status.is_running,
            backup_id=status.backup_id,
            done_bytes=status.done_bytes,
            total_bytes=status.total_bytes,
            new_bytes=status.new_bytes,
            tables=status.tables,
            left_out=status.left_out,
            error=None if error is None else backup_pb2.BackupError(reason=error.reason, message=error.message),
            completed_micros=status.completed_micros,
        )
