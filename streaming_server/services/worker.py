"""`WorkerService`: what the workers of a server ask each other, and how they ask it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc

from scankv.model.errors import ScanKvError
from scankv.v1 import transaction_pb2, worker_pb2, worker_pb2_grpc
from streaming_server.engine.backups.archive_part import StoredCapture
from streaming_server.engine.backups.backup_cut import MAX_PAUSE_SECONDS
from streaming_server.engine.backups.segment_capture import SegmentCapture
from streaming_server.engine.transactions.two_phase import (
    CommitOutcome,
    PreparedShare,
    ShareRequest,
    TransactionPlace,
)
from streaming_server.services.errors import map_errors, map_write_errors
from streaming_server.services.forwarding import Workers, error_of
from streaming_server.storage.backup.backup_manifest import BackupManifest
from streaming_server.storage.transactions.staging import PartSize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from google.protobuf.message import Message

    from streaming_server.engine.backups.archive_part import ArchivePart
    from streaming_server.engine.backups.backups import Backups
    from streaming_server.engine.transactions.shares import TransactionShares
    from streaming_server.engine.transactions.two_phase import LogOffsetsOfTables

_Response = TypeVar("_Response", bound="Message")

_SERVICE: Final = "scankv.v1.WorkerService"
LOCATE: Final = f"{_SERVICE}/LocateTransaction"

_ANSWER_SECONDS: Final = 5.0
"""How long a worker may take to answer a question."""

_SHARE_SECONDS: Final = 60.0
"""How long it may take to verify, or to apply, a share. One that is frozen is killed before."""

_STATES: Final = worker_pb2.LocateTransactionResponse


class WorkerService(worker_pb2_grpc.WorkerServiceServicer):
    """Answers the other workers of the server. See `protos/scankv/v1/worker.proto` for the contract.

    Args:
        shares: The shares that this worker has of transactions.
        backups: The backups of this worker.
        archive_part: What this worker contributes to the archive.
    """

    def __init__(self, shares: TransactionShares, backups: Backups, archive_part: ArchivePart) -> None:
        self._shares = shares
        self._backups = backups
        self._archive_part = archive_part

    async def LocateTransaction(
        self,
        request: worker_pb2.LocateTransactionRequest,
        context: grpc.aio.ServicerContext[worker_pb2.LocateTransactionRequest, worker_pb2.LocateTransactionResponse],
    ) -> worker_pb2.LocateTransactionResponse:
        async with map_write_errors(request, context):
            place = self._shares.locate(request.token, request.id)
        return worker_pb2.LocateTransactionResponse(
            state=(
                _STATES.STATE_COMMITTED
                if place.is_committed
                else _STATES.STATE_OPEN
                if place.is_open
                else _STATES.STATE_UNKNOWN
            ),
            parts=_to_parts(place.sizes),
            coordinator=place.coordinator,
            remaining_millis=max(0, round(place.remaining * 1000)),
            owns_job=place.owns_job,
            tables=sorted(place.tables),
            principal=place.principal,
        )

    async def PrepareTransaction(
        self,
        request: worker_pb2.PrepareTransactionRequest,
        context: grpc.aio.ServicerContext[worker_pb2.PrepareTransactionRequest, worker_pb2.PrepareTransactionResponse],
    ) -> worker_pb2.PrepareTransactionResponse:
        async with map_write_errors(request, context):
            prepared = await self._shares.prepare(
                ShareRequest(
                    token=request.token,
                    attempt=request.attempt,
                    coordinator=request.coordinator,
                    sizes=tuple((part.part, part.requests) for part in request.parts),
                    micros=request.micros,
                )
            )
        return worker_pb2.PrepareTransactionResponse(
            micros=prepared.micros, rows=prepared.rows, tables=prepared.tables, parts=_to_parts(prepared.sizes)
        )

    async def ConcludeTransaction(
        self,
        request: worker_pb2.ConcludeTransactionRequest,
        context: grpc.aio.ServicerContext[
            worker_pb2.ConcludeTransactionRequest, worker_pb2.ConcludeTransactionResponse
        ],
    ) -> worker_pb2.ConcludeTransactionResponse:
        async with map_write_errors(request, context):
            micros = request.micros if request.HasField("micros") else None
            applied = await self._shares.conclude(request.token, request.attempt, micros)
        offsets = {} if applied is None else applied.log_offsets
        return worker_pb2.ConcludeTransactionResponse(
            tables=[
                transaction_pb2.CommittedTable(table=name, log_offsets=each) for name, each in sorted(offsets.items())
            ]
        )

    async def GetTransactionOutcome(
        self,
        request: worker_pb2.GetTransactionOutcomeRequest,
        context: grpc.aio.ServicerContext[
            worker_pb2.GetTransactionOutcomeRequest, worker_pb2.GetTransactionOutcomeResponse
        ],
    ) -> worker_pb2.GetTransactionOutcomeResponse:
        async with map_write_errors(request, context):
            found = self._shares.outcome(request.token, request.attempt)
        if isinstance(found, int):
            return worker_pb2.GetTransactionOutcomeResponse(micros=found)
        return worker_pb2.GetTransactionOutcomeResponse(may_commit=found is CommitOutcome.UNDECIDED)

    async def FlushForBackup(
        self,
        request: worker_pb2.FlushForBackupRequest,
        context: grpc.aio.ServicerContext[worker_pb2.FlushForBackupRequest, worker_pb2.FlushForBackupResponse],
    ) -> worker_pb2.FlushForBackupResponse:
        async with map_errors(request, context):
            await self._backups.flush()
        return worker_pb2.FlushForBackupResponse()

    async def BeginBackupPart(
        self,
        request: worker_pb2.BeginBackupPartRequest,
        context: grpc.aio.ServicerContext[worker_pb2.BeginBackupPartRequest, worker_pb2.BeginBackupPartResponse],
    ) -> worker_pb2.BeginBackupPartResponse:
        async with map_errors(request, context):
            micros = await self._backups.begin_part(request.cut_id)
        return worker_pb2.BeginBackupPartResponse(micros=micros)

    async def FinishBackupPart(
        self,
        request: worker_pb2.FinishBackupPartRequest,
        context: grpc.aio.ServicerContext[worker_pb2.FinishBackupPartRequest, worker_pb2.FinishBackupPartResponse],
    ) -> worker_pb2.FinishBackupPartResponse:
        async with map_errors(request, context):
            micros = request.micros if request.HasField("micros") else None
            part = await self._backups.finish_part(request.cut_id, micros)
        return worker_pb2.FinishBackupPartResponse(manifest=json.dumps(part.to_json()).encode())

    async def CaptureForArchive(
        self,
        request: worker_pb2.CaptureForArchiveRequest,
        context: grpc.aio.ServicerContext[worker_pb2.CaptureForArchiveRequest, worker_pb2.CaptureForArchiveResponse],
    ) -> worker_pb2.CaptureForArchiveResponse:
        async with map_errors(request, context):
            logs = {(each.incarnation, each.bucket): each.file for each in request.logs}
            capture = await self._archive_part.capture(StoredCapture(request.stored, logs))
        return worker_pb2.CaptureForArchiveResponse(capture=json.dumps(capture.to_json()).encode())


class OtherWorkers:
    """The other workers, as transactions, backups and the archive of this one call them.

    See `two_phase.Peers`, `BackupPeers`, `ArchivePeers`.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    @property
    def number(self) -> int:
        """The number of this worker."""
        return self._workers.placement.number

    def owns(self, table: str) -> bool:
        """Whether this worker owns a table."""
        return self._workers.placement.owns(table)

    async def prepare(self, worker: int, request: ShareRequest) -> PreparedShare:
        """Has a worker prepare its share."""
        message = worker_pb2.PrepareTransactionRequest(
            token=request.token,
            attempt=request.attempt,
            coordinator=request.coordinator,
            parts=_to_parts({part: PartSize(requests) for part, requests in request.sizes}),
            micros=request.micros,
        )
        answer = await self._ask(
            worker, "PrepareTransaction", message, worker_pb2.PrepareTransactionResponse, _SHARE_SECONDS
        )
        return PreparedShare(
            micros=answer.micros, rows=answer.rows, tables=dict(answer.tables), sizes=_of_parts(answer.parts)
        )

    async def conclude(self, worker: int, token: str, attempt: str, micros: int | None) -> LogOffsetsOfTables:
        """Has a worker apply or undo a prepared share."""
        message = worker_pb2.ConcludeTransactionRequest(token=token, attempt=attempt, micros=micros)
        seconds = _ANSWER_SECONDS if micros is None else _SHARE_SECONDS
        answer = await self._ask(
            worker, "ConcludeTransaction", message, worker_pb2.ConcludeTransactionResponse, seconds
        )
        return {each.table: dict(each.log_offsets) for each in answer.tables}

    async def outcome(self, worker: int, token: str, attempt: str) -> int | CommitOutcome:
        """Asks the coordinator for the outcome of an attempt."""
        message = worker_pb2.GetTransactionOutcomeRequest(token=token, attempt=attempt)
        answer = await self._ask(
            worker, "GetTransactionOutcome", message, worker_pb2.GetTransactionOutcomeResponse, _ANSWER_SECONDS
        )
        if answer.HasField("micros"):
            return answer.micros
        return CommitOutcome.UNDECIDED if answer.may_commit else CommitOutcome.UNDONE

    async def remaining(self, token: str) -> float:
        """Returns for how many more seconds a transaction lives elsewhere. A worker that does not answer counts."""
        found = await asyncio.gather(*(self._remaining_at(number, token) for number in self.others))
        return max(found, default=0.0)

    async def _remaining_at(self, worker: int, token: str) -> float:
        try:
            answer = await self._ask(
                worker,
                "LocateTransaction",
                worker_pb2.LocateTransactionRequest(token=token),
                worker_pb2.LocateTransactionResponse,
                _ANSWER_SECONDS,
            )
        except ScanKvError:
            return _ANSWER_SECONDS
        return answer.remaining_millis / 1000

    @property
    def others(self) -> list[int]:
        """The numbers of the other workers, ascending."""
        return [number for number in range(len(self._workers)) if number != self.number]

    async def flush(self, worker: int) -> None:
        """Has a worker flush its buckets for a backup."""
        message = worker_pb2.FlushForBackupRequest()
        await self._ask(worker, "FlushForBackup", message, worker_pb2.FlushForBackupResponse, _SHARE_SECONDS)

    async def begin_part(self, worker: int, cut_id: str) -> int:
        """Pauses the writers of a worker for a backup."""
        message = worker_pb2.BeginBackupPartRequest(cut_id=cut_id)
        answer = await self._ask(
            worker, "BeginBackupPart", message, worker_pb2.BeginBackupPartResponse, MAX_PAUSE_SECONDS
        )
        return answer.micros

    async def finish_part(self, worker: int, cut_id: str, micros: int | None) -> BackupManifest:
        """Has a worker store its tables, which may take long."""
        message = worker_pb2.FinishBackupPartRequest(cut_id=cut_id, micros=micros)
        answer = await self._ask(worker, "FinishBackupPart", message, worker_pb2.FinishBackupPartResponse, None)
        return BackupManifest.from_json(json.loads(answer.manifest))

    async def capture(self, worker: int, stored: StoredCapture) -> SegmentCapture:
        """Asks a worker what the next segment of the archive must contain of its tables."""
        logs = [
            worker_pb2.ArchivedLog(incarnation=incarnation, bucket=bucket, file=file)
            for (incarnation, bucket), file in stored.logs.items()
        ]
        message = worker_pb2.CaptureForArchiveRequest(stored=stored.capture_id, logs=logs)
        answer = await self._ask(
            worker, "CaptureForArchive", message, worker_pb2.CaptureForArchiveResponse, _SHARE_SECONDS
        )
        return SegmentCapture.from_json(json.loads(answer.capture))

    async def _ask(
        self, worker: int, method: str, request: Message, response: type[_Response], seconds: float | None
    ) -> _Response:
        data = request.SerializeToString()
        try:
            answer = await self._workers.ask(worker, f"{_SERVICE}/{method}", data, seconds, of_server=True)
        except grpc.aio.AioRpcError as error:
            raise error_of(error, worker, "a part of the tables") from error
        return response.FromString(answer)


def place_in(answer: bytes) -> TransactionPlace:
    """Reads the answer of LocateTransaction."""
    message = worker_pb2.LocateTransactionResponse.FromString(answer)
    return TransactionPlace(
        is_open=message.state == _STATES.STATE_OPEN,
        is_committed=message.state == _STATES.STATE_COMMITTED,
        sizes=_of_parts(message.parts),
        coordinator=message.coordinator if message.HasField("coordinator") else None,
        remaining=message.remaining_millis / 1000,
        owns_job=message.owns_job,
        tables=frozenset(message.tables),
        principal=message.principal,
    )


def _to_parts(sizes: Mapping[str, PartSize]) -> list[transaction_pb2.TransactionPartSize]:
    return [
        transaction_pb2.TransactionPartSize(part=part, requests=each.requests, balance=each.balance)
        for part, each in sizes.items()
    ]


def _of_parts(parts: Iterable[Any]) -> dict[str, PartSize]:
    return {each.part: PartSize(each.requests, each.balance) for each in parts}
