"""Backups of a server."""

from __future__ import annotations

import asyncio
import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from scankv.model.errors import BackupFailed, error_for_reason
from scankv.v1 import backup_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aio_client._transport.transport import Transport

_SHORTEST_POLL_SECONDS: Final = 0.005
_POLL_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupStatus:
    """A backup of a server at one moment: the one that is running, or the last one since the server was started.

    Attributes:
        running: Whether the backup is running.
        backup_id: Its id. Empty: it has no instant yet, or none was begun.
        done_bytes: Bytes of its files that are stored.
        total_bytes: Bytes of all its files. 0: not known yet.
        new_bytes: Bytes that no earlier backup had, so that they had to be copied.
        tables: The number of its tables.
        left_out: Why tables are not in it, by name: they are damaged. Empty: it has all tables.
        error: Why it has failed. Empty: it has not failed.
        last_completed_at: The instant of the last complete backup, in UTC, by the server's clock. None: no
            complete backup is known.
    """

    running: bool
    backup_id: str
    done_bytes: int
    total_bytes: int
    new_bytes: int
    tables: int
    left_out: Mapping[str, str]
    error: str
    last_completed_at: dt.datetime | None

    @classmethod
    def of(cls, message: backup_pb2.BackupStatus) -> Self:
        """Decodes an answer."""
        completed = message.completed_micros
        return cls(
            running=message.running,
            backup_id=message.backup_id,
            done_bytes=message.done_bytes,
            total_bytes=message.total_bytes,
            new_bytes=message.new_bytes,
            tables=message.tables,
            left_out=dict(message.left_out),
            error=message.error.message,
            last_completed_at=dt.datetime.fromtimestamp(completed / 1e6, dt.UTC) if completed else None,
        )


async def create_backup(transport: Transport, on_progress: Callable[[BackupStatus], None] | None) -> BackupStatus:
    """See `Client.create_backup`."""
    begun = await transport.call(
        lambda: transport.services.backups.CreateBackup, backup_pb2.CreateBackupRequest(), repeatable=False
    )
    pause = _SHORTEST_POLL_SECONDS
    while True:
        message = await backup_message(transport)
        if message.number != begun.number:
            raise BackupFailed("the server was restarted, or another backup was begun, before this one was seen to end")
        status = BackupStatus.of(message)
        if on_progress is not None:
            on_progress(status)
        if not status.running:
            break
        await asyncio.sleep(pause)
        pause = min(1.3 * pause, _POLL_SECONDS)
    if message.HasField("error"):
        raise (error_for_reason(message.error.reason) or BackupFailed)(message.error.message)
    return status


async def backup_message(transport: Transport) -> backup_pb2.BackupStatus:
    """Asks for the status of the running or last backup."""
    return await transport.call(lambda: transport.services.backups.GetBackupStatus, backup_pb2.GetBackupStatusRequest())
