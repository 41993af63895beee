"""`WriteService`: upserts, deletes, undo and writers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from scankv.model.errors import InvalidRequest, TableRecreated
from scankv.model.names import check_writer_id, table_of, tablet_number
from scankv.v1 import write_pb2, write_pb2_grpc
from streaming_server.access.owners import continuing_principal, owner_check
from streaming_server.current_call import claim_answer
from streaming_server.engine.merging.preparing import WriteKind
from streaming_server.engine.transactions.request_staging import StagedRequestId
from streaming_server.engine.transactions.undo import UndoOperation
from streaming_server.engine.writes.writing import WritePreconditions
from streaming_server.services.errors import map_write_errors, status_of
from streaming_server.services.log_offsets import log_offsets
from streaming_server.services.tablets.admissions import admitted
from streaming_server.storage.bucket.writer_states import MAX_SEQUENCE, WriteIdentity
from streaming_server.storage.files.disk_space import refusal_of_write
from streaming_server.storage.tables.data_directory import MARKERS_FORMAT, REFUSALS_FORMAT
from streaming_server.storage.transactions.staging import DELETE, UPSERT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import grpc

    from scankv.model.changes.log_offsets import LogOffsets
    from scankv.model.errors import ScanKvError
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.services.forwarding import Workers

ERROR_BYTES: Final = 1024
"""The memory that the answer claims for each row that may fail on its own."""


class WriteService(write_pb2_grpc.WriteServiceServicer):
    """Serves the writes. See `protos/scankv/v1/write.proto` for the contract.

    Args:
        tables: The tables of the server.
        workers: The workers of the server.

    Attributes:
        rows_written: Rows and keys acknowledged since the start.
    """

    def __init__(self, tables: Tables, workers: Workers) -> None:
        self._tables = tables
        self._workers = workers
        self.rows_written = 0

    async def Upsert(
        self,
        request: write_pb2.UpsertRequest,
        context: grpc.aio.ServicerContext[write_pb2.UpsertRequest, write_pb2.WriteResponse],
    ) -> write_pb2.WriteResponse:
        async with map_write_errors(request, context):
            check_is_for_tablet(request)
            table = self._tables.table(request.table)
            if request.untracked:
                self._check_untracked(request)
            if request.HasField("transaction"):
                return await self._stage(request, table, UPSERT, request.rows)
            async with admitted(request, self._workers, self._tables, context.time_remaining()):
                if request.encoded_rows:
                    return await self._write_few(request, table, request.encoded_rows)
                check_same_table(request, table.definition)
                terms = preconditions_of(request)
                kind = replace(kind_of(request), tracks_changes=not request.untracked)
                rows, offsets = await table.writes.upsert(request.rows, request.schema_id, terms, kind)
        self._count(request, rows)
        return _write_response(rows, offsets, table)

    async def Delete(
        self,
        request: write_pb2.DeleteRequest,
        context: grpc.aio.ServicerContext[write_pb2.DeleteRequest, write_pb2.WriteResponse],
    ) -> write_pb2.WriteResponse:
        async with map_write_errors(request, context):
            check_is_for_tablet(request)
            table = self._tables.table(request.table)
            if request.HasField("transaction"):
                return await self._stage(request, table, DELETE, request.keys)
            async with admitted(request, self._workers, self._tables, context.time_remaining()):
                if request.encoded_keys:
                    return await self._write_few(request, table, request.encoded_keys)
                check_same_table(request, table.definition)
                terms = preconditions_of(request)
                rows, offsets = await table.writes.delete(request.keys, terms, kind_of(request), request.schema_id)
        self._count(request, rows)
        return _write_response(rows, offsets, table)

    def _count(self, request: write_pb2.UpsertRequest | write_pb2.DeleteRequest, rows: int) -> None:
        if not request.only_checks:
            self.rows_written += rows

    def _check_untracked(self, request: write_pb2.UpsertRequest) -> None:
        if request.HasField("transaction") or request.encoded_rows:
            raise InvalidRequest(
                "untracked cannot be combined with transaction or encoded_rows: send Arrow data outside a transaction",
                option="untracked",
            )
        self._tables.rules.require_format(MARKERS_FORMAT, "writes without tracking of changes")

    async def _write_few(
        self,
        request: write_pb2.UpsertRequest | write_pb2.DeleteRequest,
        table: LiveTable,
        encoded: Sequence[bytes],
    ) -> write_pb2.WriteResponse:
        """Writes few rows, or deletes the rows of few keys."""
        deletes = isinstance(request, write_pb2.DeleteRequest)
        data = request.keys if isinstance(request, write_pb2.DeleteRequest) else request.rows
        if data or request.columns or request.mode or request.HasField("unchanged_since"):
            raise InvalidRequest(
                "encoded rows and keys must come without Arrow data, columns, mode and unchanged_since"
            )
        definition = table.definition
        if request.table_incarnation != definition.incarnation:
            raise TableRecreated(
                f"table {definition.name} was restored, or dropped and created again: open it again",
                table=definition.name,
            )
        if request.independent:
            self._tables.rules.require_format(REFUSALS_FORMAT, "independent rows")
            # Each row may have an error of its own in the answer, and what is written cannot be refused afterwards.
            claim_answer(ERROR_BYTES * len(encoded))
        written = await table.writes.write_few(
            encoded, preconditions_of(request), deletes=deletes, independent=request.independent
        )
        self._count(request, len(encoded) - len(written.errors))
        return write_pb2.WriteResponse(
            rows=len(encoded) - len(written.errors),
            log_offsets=written.offsets,
            table_incarnation=definition.incarnation,
            buckets=written.buckets,
            failures=_failures(written.errors),
        )

    async def _stage(
        self,
        request: write_pb2.UpsertRequest | write_pb2.DeleteRequest,
        table: LiveTable,
        action: str,
        data: bytes,
    ) -> write_pb2.WriteResponse:
        """Stages a write as a part of its transaction."""
        check_same_table(request, table.definition)
        rows = await self._tables.transactions.staging.stage(
            staged_id_of(request),
            table,
            action,
            data,
            schema_id=request.schema_id,
            kind=kind_of(request),
            column_locks=request.column_locks,
        )
        return write_pb2.WriteResponse(rows=rows)

    async def Undo(
        self,
        request: write_pb2.UndoRequest,
        context: grpc.aio.ServicerContext[write_pb2.UndoRequest, write_pb2.UndoResponse],
    ) -> write_pb2.UndoResponse:
        async with map_write_errors(request, context):
            check_is_for_tablet(request)
            to = offsets_to_undo(request)
            table = self._tables.table(request.table)
            undo = UndoOperation(table, request.writer, frozenset(request.column_locks))
            if request.only_checks:
                return write_pb2.UndoResponse(columns=await undo.check(to))
            offsets, undone = await undo.run(to), undo.result
        return write_pb2.UndoResponse(
            restored=undone.restored,
            deleted=undone.deleted,
            conflicts=undone.conflicts,
            log_offsets=offsets,
            table_incarnation=table.definition.incarnation,
        )

    async def OpenWriter(
        self,
        request: write_pb2.OpenWriterRequest,
        context: grpc.aio.ServicerContext[write_pb2.OpenWriterRequest, write_pb2.OpenWriterResponse],
    ) -> write_pb2.OpenWriterResponse:
        async with map_write_errors(request, context):
            check_writer_id(request.id)
            check_is_for_tablet(request)
            table = self._tables.table(request.table)
            history = table.definition.history
            if request.only_looks:
                found = await table.writes.find_writer(request.id, may_be_new=request.least_epoch == 1)
                return write_pb2.OpenWriterResponse(
                    epoch=found.epoch, next_sequence=found.next_sequence, owner=found.owner
                )
            owner = request.owner if request.HasField("owner") else None
            epoch, sequence = await table.writes.open_writer(request.id, request.least_epoch, owner)
        return write_pb2.OpenWriterResponse(epoch=epoch, next_sequence=sequence, history=history)


def offsets_to_undo(request: write_pb2.UndoRequest) -> LogOffsets:
    """Returns the offsets to which an undo reverts. Raises InvalidRequest."""
    check_writer_id(request.writer)
    to = log_offsets(request.log_offsets)
    if not to.table_incarnation and not request.any_incarnation:
        raise InvalidRequest(
            "log_offsets have no table_incarnation: send the one of the response that they come from, or set "
            "any_incarnation"
        )
    return to


def staged_id_of(request: write_pb2.UpsertRequest | write_pb2.DeleteRequest) -> StagedRequestId:
    """Returns which request of a transaction a write is. Raises InvalidRequest."""
    encoded = request.encoded_keys if isinstance(request, write_pb2.DeleteRequest) else request.encoded_rows
    if encoded:
        raise InvalidRequest("encoded rows and keys cannot be parts of a transaction: send Arrow data")
    if request.HasField("writer") or request.HasField("unchanged_since"):
        raise InvalidRequest(
            "a write of a transaction cannot have writer or unchanged_since: use GetForUpdate, or the conflict mode of "
            "the transaction"
        )
    place = request.transaction
    return StagedRequestId(token=place.token, part=place.part, sequence=place.sequence, fragment=place.fragment)


def _failures(errors: Mapping[int, ScanKvError]) -> list[write_pb2.WriteFailure]:
    """Returns errors of rows as messages. Rows of a bucket that could not be written share one."""
    rows: dict[int, list[int]] = {}
    by_id = {id(error): error for error in errors.values()}
    for number, error in errors.items():
        rows.setdefault(id(error), []).append(number)
    return [
        write_pb2.WriteFailure(rows=numbers, status=status_of(refusal_of_write(by_id[each])).SerializeToString())
        for each, numbers in rows.items()
    ]


def _write_response(rows: int, offsets: Mapping[int, int], table: LiveTable) -> write_pb2.WriteResponse:
    incarnation = table.definition.table_incarnation
    return write_pb2.WriteResponse(rows=rows, log_offsets=offsets, table_incarnation=incarnation)


def check_same_table(request: write_pb2.UpsertRequest | write_pb2.DeleteRequest, definition: TableDefinition) -> None:
    """Checks that a request with Arrow data, if it names an incarnation, is for the current one.

    Raises:
        TableRecreated: The table is another one now.
    """
    # Clients send requests to tablets with the incarnation of the table.
    if request.table_incarnation not in ("", definition.incarnation, definition.table_incarnation):
        raise TableRecreated(
            f"table {definition.table_name} was restored, or dropped and created again, since the rows before these "
            "were written to it; nothing of this request was written: write all rows again",
            table=definition.table_name,
        )


def check_is_for_tablet(
    request: write_pb2.UpsertRequest | write_pb2.DeleteRequest | write_pb2.UndoRequest | write_pb2.OpenWriterRequest,
) -> None:
    """Raises InvalidRequest if a request to a table has what only requests to tablets have."""
    if tablet_number(request.table) is not None:
        return
    for field in ("only_checks", "admitted", "only_looks", "owner", "least_epoch"):
        if getattr(request, field, False):
            raise InvalidRequest(f"{field} is for the worker processes of a server: leave it out")


def kind_of(request: write_pb2.UpsertRequest | write_pb2.DeleteRequest) -> WriteKind:
    """Returns how a request writes its rows. Raises InvalidRequest."""
    return WriteKind(columns=tuple(request.columns), overwrite=overwrites(request.mode))


def overwrites(mode: write_pb2.WriteMode.ValueType) -> bool:
    """Whether rows replace the current ones, whatever the merge engine. Raises InvalidRequest for an unknown mode."""
    if mode not in write_pb2.WriteMode.values():
        raise InvalidRequest(f"mode must be a value of WriteMode, not {mode}")
    return mode == write_pb2.WRITE_MODE_OVERWRITE


def preconditions_of(request: write_pb2.UpsertRequest | write_pb2.DeleteRequest) -> WritePreconditions:
    """Returns the preconditions of a write request. Raises InvalidRequest."""
    return WritePreconditions(
        identity=_identity_of(request.writer, request.table) if request.HasField("writer") else None,
        unchanged_since=log_offsets(request.unchanged_since) if request.HasField("unchanged_since") else None,
        column_locks=frozenset(request.column_locks),
        only_checks=request.only_checks,
    )


def _identity_of(writer: write_pb2.WriterIdentity, table: str) -> WriteIdentity:
    check_writer_id(writer.id)
    if writer.sequence >= MAX_SEQUENCE or writer.acked_below > writer.sequence:
        raise InvalidRequest(
            f"writer has sequence {writer.sequence} and acked_below {writer.acked_below}: the sequence must be below "
            f"{MAX_SEQUENCE}, and acked_below must not exceed it"
        )
    return WriteIdentity(
        writer=writer.id,
        epoch=writer.epoch,
        sequence=writer.sequence,
        acked_below=writer.acked_below,
        age_seconds=writer.sent_millis_ago / 1000,
        history=writer.history,
        principal=continuing_principal(table),
        # With the caller of this call: its rows may be applied by the task of another one.
        check_owner=owner_check(f'the writer "{writer.id}" of {table_of(table)}', [table]) if writer.epoch else None,
    )
