"""`TransactionService`: begins, commits, aborts and lists transactions, and reads for them."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

from scankv.model.errors import InvalidRequest
from scankv.model.expressions.wire import from_proto
from scankv.model.limits import MAX_WAIT_MILLIS
from scankv.model.names import TableName, table_of, with_table_names
from scankv.model.tables.schema import incarnation_of
from scankv.v1 import transaction_pb2, transaction_pb2_grpc
from streaming_server.engine.merging.preparing import WriteKind
from streaming_server.engine.transactions.delete_all import ALL_ROWS
from streaming_server.engine.transactions.jobs import JobMemory, JobRequest, check_job
from streaming_server.engine.transactions.open_transaction import OpenTransaction, TransactionOptions
from streaming_server.engine.transactions.request_staging import StagedRequestId
from streaming_server.services.errors import map_errors, map_write_errors
from streaming_server.services.lookup import ipc_of
from streaming_server.services.scan_request import key_range
from streaming_server.services.tablets.table_errors import naming_tables
from streaming_server.services.write import overwrites
from streaming_server.storage.tables.data_directory import DELETIONS_FORMAT

if TYPE_CHECKING:
    import grpc

    from scankv.model.errors import ScanKvError
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.engine.transactions.key_locks import KeyLocks
    from streaming_server.scan.read_plan import ReadPlan
    from streaming_server.storage.transactions.decisions import CommittedTransaction, Decision

_MODES: Final = transaction_pb2.ConflictMode


class TransactionService(transaction_pb2_grpc.TransactionServiceServicer):
    """Serves transactions. See `protos/scankv/v1/transaction.proto` for the contract.

    Args:
        tables: The tables of this process.
        is_worker: Whether this process is one of several. Then only the router begins and commits transactions.
    """

    def __init__(self, tables: Tables, *, is_worker: bool = False) -> None:
        self._tables = tables
        self._is_worker = is_worker
        self._transactions = tables.transactions

    async def BeginTransaction(
        self,
        request: transaction_pb2.BeginTransactionRequest,
        context: grpc.aio.ServicerContext[
            transaction_pb2.BeginTransactionRequest, transaction_pb2.BeginTransactionResponse
        ],
    ) -> transaction_pb2.BeginTransactionResponse:
        """Begins a transaction, or returns the earlier commit of its id."""
        async with map_errors(request, context):
            if request.conflict_mode not in _MODES.values():
                raise InvalidRequest(f"conflict_mode must be a value of ConflictMode, not {request.conflict_mode}")
            if request.common_token and not self._is_worker:
                raise InvalidRequest("common_token is for the worker processes of a server: leave it out")
            memory = self._recall_job(request)
            begun = await self._transactions.begin(
                TransactionOptions(
                    id=request.id,
                    attempt=request.attempt,
                    job_table=request.job.table if memory.incarnation else "",
                    job_incarnation=memory.incarnation,
                    finds_conflicts=request.conflict_mode == transaction_pb2.CONFLICT_MODE_ABORT,
                    ttl=request.ttl_millis / 1000 if request.ttl_millis else self._transactions.default_ttl,
                    writer=request.writer,
                    lock_wait=request.lock_wait_millis / 1000 if request.lock_keys else None,
                ),
                request.common_token,
            )
        response = transaction_pb2.BeginTransactionResponse()
        if self._is_worker and request.HasField("job"):
            response.job.CopyFrom(transaction_pb2.JobMemory(**asdict(memory)))
        if isinstance(begun, OpenTransaction):
            response.token = begun.token
        else:
            response.committed.CopyFrom(_commit_response(begun))
        return response

    def _recall_job(self, request: transaction_pb2.BeginTransactionRequest) -> JobMemory:
        """Returns what this process knows of the job of a transaction. If the server is one process, checks the job.

        Raises:
            TableNotFound, TableRecreated, InvalidRequest: See transaction.proto.
        """
        if not request.HasField("job"):
            return JobMemory()
        step = job_request(request)
        # Tablets have no jobs.
        TableName.parse(step.table)
        if not step.id:
            raise InvalidRequest("job needs a transaction with an id: also give id, such as job-1:7")
        memory = self._transactions.recall_job(step)
        if not self._is_worker:
            check_job(step, [memory])
        return memory

    async def GetForUpdate(
        self,
        request: transaction_pb2.GetForUpdateRequest,
        context: grpc.aio.ServicerContext[transaction_pb2.GetForUpdateRequest, transaction_pb2.GetForUpdateResponse],
    ) -> transaction_pb2.GetForUpdateResponse:
        async with map_errors(request, context):
            place = StagedRequestId(
                token=request.token, part=request.part, sequence=request.sequence, fragment=request.fragment
            )
            table = self._tables.table(request.table)
            rows, found, schema_id = await self._transactions.staging.get_for_update(place, table, request.keys)
            return transaction_pb2.GetForUpdateResponse(
                rows=ipc_of(rows).to_pybytes(),
                found=found,
                table_incarnation=table.definition.table_incarnation,
                schema_id=schema_id,
            )
        raise AssertionError("map_errors ends the call")

    async def LookupStaged(
        self,
        request: transaction_pb2.LookupStagedRequest,
        context: grpc.aio.ServicerContext[transaction_pb2.LookupStagedRequest, transaction_pb2.LookupStagedResponse],
    ) -> transaction_pb2.LookupStagedResponse:
        async with map_errors(request, context):
            place = StagedRequestId(token=request.token, part=request.part, sequence=request.requests)
            table = self._tables.table(request.table)
            rows, found, schema_id = await self._transactions.staging.lookup(place, table, request.keys)
            return transaction_pb2.LookupStagedResponse(
                rows=ipc_of(rows).to_pybytes(),
                found=found,
                table_incarnation=table.definition.table_incarnation,
                schema_id=schema_id,
            )
        raise AssertionError("map_errors ends the call")

    async def StageDeleteAll(
        self,
        request: transaction_pb2.StageDeleteAllRequest,
        context: grpc.aio.ServicerContext[
            transaction_pb2.StageDeleteAllRequest, transaction_pb2.StageDeleteAllResponse
        ],
    ) -> transaction_pb2.StageDeleteAllResponse:
        async with map_write_errors(request, context):
            if request.wait_millis > MAX_WAIT_MILLIS:
                raise InvalidRequest(f"wait_millis must be at most {MAX_WAIT_MILLIS:,}, not {request.wait_millis:,}")
            if request.untracked:
                self._tables.rules.require_format(DELETIONS_FORMAT, "deletes without tracking of changes")
            rows = await self._transactions.staging.stage_delete_all(
                StagedRequestId(
                    token=request.token, part=request.part, sequence=request.sequence, fragment=request.fragment
                ),
                self._tables.table(request.table),
                WriteKind(overwrite=overwrites(request.mode), tracks_changes=not request.untracked),
                request.column_locks,
                request.wait_millis / 1000,
                rows_to_delete(request),
                alone=request.alone and self._tables.rules.has_format(DELETIONS_FORMAT),
                continues=request.continues,
            )
        return transaction_pb2.StageDeleteAllResponse(done=rows is not None, rows=rows or 0)

    async def CommitTransaction(
        self,
        request: transaction_pb2.CommitTransactionRequest,
        context: grpc.aio.ServicerContext[
            transaction_pb2.CommitTransactionRequest, transaction_pb2.CommitTransactionResponse
        ],
    ) -> transaction_pb2.CommitTransactionResponse:
        async with map_write_errors(request, context):
            if request.other_workers and not self._is_worker:
                raise InvalidRequest("other_workers is for the worker processes of a server: leave it out")
            sizes = [(part.part, part.requests) for part in request.parts]
            with naming_tables():
                committed = await self._transactions.commit(
                    request.token, request.id, sizes, list(request.other_workers)
                )
        return _commit_response(committed)

    async def AbortTransaction(
        self,
        request: transaction_pb2.AbortTransactionRequest,
        context: grpc.aio.ServicerContext[
            transaction_pb2.AbortTransactionRequest, transaction_pb2.AbortTransactionResponse
        ],
    ) -> transaction_pb2.AbortTransactionResponse:
        async with map_errors(request, context):
            await self._transactions.abort(request.token)
        return transaction_pb2.AbortTransactionResponse()

    async def ListTransactions(
        self,
        request: transaction_pb2.ListTransactionsRequest,
        context: grpc.aio.ServicerContext[
            transaction_pb2.ListTransactionsRequest, transaction_pb2.ListTransactionsResponse
        ],
    ) -> transaction_pb2.ListTransactionsResponse:
        async with map_errors(request, context):
            stuck, now = self._transactions.stuck, self._tables.clock.service_micros()
            tokens = {decision.token for decision, _ in stuck}
            transactions = [_stuck(decision, error, now) for decision, error in stuck]
            transactions += [
                _open(each, self._transactions.key_locks)
                for each in self._transactions.open
                if each.token not in tokens
            ]
        return transaction_pb2.ListTransactionsResponse(transactions=transactions)

    async def GiveUpTransaction(
        self,
        request: transaction_pb2.GiveUpTransactionRequest,
        context: grpc.aio.ServicerContext[
            transaction_pb2.GiveUpTransactionRequest, transaction_pb2.GiveUpTransactionResponse
        ],
    ) -> transaction_pb2.GiveUpTransactionResponse:
        """Gives up the rows of a committed transaction in the buckets to which it cannot be applied."""
        async with map_errors(request, context):
            with naming_tables():
                committed, lost = await self._transactions.give_up(request.token)
        return transaction_pb2.GiveUpTransactionResponse(
            id=committed.id,
            rows=committed.rows,
            lost=[transaction_pb2.LostWrites(**asdict(replace(each, table=table_of(each.table)))) for each in lost],
        )


def job_request(request: transaction_pb2.BeginTransactionRequest) -> JobRequest:
    """Returns the step of a job in a request."""
    job = request.job
    return JobRequest(id=request.id, table=job.table, follows=job.follows, accepted=job.accepted_incarnation)


def rows_to_delete(request: transaction_pb2.StageDeleteAllRequest) -> ReadPlan:
    """Returns the plan of the rows to delete. Raises InvalidRequest."""
    return replace(
        ALL_ROWS,
        where=from_proto(request.where) if request.HasField("where") else None,
        where_message=request.where.SerializeToString(deterministic=True),
        key_range=key_range(request.key_range),
    )


def _commit_response(committed: CommittedTransaction) -> transaction_pb2.CommitTransactionResponse:
    tables: dict[str, transaction_pb2.CommittedTable] = {}
    for name, offsets in sorted(committed.log_offsets.items()):
        table = tables.setdefault(table_of(name), transaction_pb2.CommittedTable(table=table_of(name)))
        table.table_incarnation = incarnation_of(committed.tables[name])
        for bucket, offset in offsets.items():
            table.log_offsets[bucket] = offset
    return transaction_pb2.CommitTransactionResponse(tables=tables.values(), rows=committed.rows)


def _stuck(decision: Decision, error: ScanKvError, now_micros: int) -> transaction_pb2.OpenTransaction:
    return transaction_pb2.OpenTransaction(
        token=decision.token,
        id=decision.id,
        tables=sorted(set(map(table_of, decision.tables))),
        rows=decision.rows,
        age_millis=max(0, now_micros - decision.served_micros) // 1000,
        committing=True,
        stuck=with_table_names(error.message, decision.tables),
    )


def _open(transaction: OpenTransaction, key_locks: KeyLocks) -> transaction_pb2.OpenTransaction:
    options, now = transaction.options, transaction.clock.monotonic()
    names = set(map(table_of, transaction.tables))
    return transaction_pb2.OpenTransaction(
        token=transaction.token,
        id=options.id,
        conflict_mode=(
            transaction_pb2.CONFLICT_MODE_ABORT if options.finds_conflicts else transaction_pb2.CONFLICT_MODE_LAST_WINS
        ),
        tables=sorted(names),
        rows=sum(part.rows for part in transaction.parts.values()),
        bytes=transaction.size,
        age_millis=round((now - transaction.began_at) * 1000),
        ttl_millis=round(options.ttl * 1000),
        remaining_millis=max(0, round((transaction.expires - now) * 1000)),
        committing=transaction.commit is not None,
        locked_keys=key_locks.count(transaction.token),
        waits_for=sorted(key_locks.blockers(transaction.token)),
        principal=transaction.principal,
    )
