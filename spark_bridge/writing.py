"""Writes in one transaction: checks where Spark plans, staging in each task, and a single commit."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from aio_client import JobStep, ScanKvError, SchemaMismatch, TableExists, TableNotFound, TransactionLost, sync
from scankv.model import lazy_compute as pc
from scankv.model.counts import counted
from scankv.model.errors import UsageError
from scankv.model.expressions import bind, evaluate, predicate_of
from scankv.model.tables.columns import CHANGE_COLUMNS, CHANGE_TYPE
from scankv.model.tables.log_tables import require_key
from spark_bridge.casting import arrow_schema
from spark_bridge.options import option_error
from spark_bridge.restarts import retry_through_restart
from spark_bridge.spans import work_span
from spark_bridge.write_options import DELETE, UPSERT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from pyspark.sql.types import DataType, StructType

    from aio_client import ClientConfig
    from spark_bridge.write_options import WriteOptions

# Short, since an unreachable server must not delay the report of a failed job. The staged rows expire by themselves.
_ABORT_SECONDS: Final = 5.0
# The size of one request.
_MOST_ROWS: Final = 100_000
_MOST_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteJob:
    """What every process of a job knows about the write. Picklable.

    Attributes:
        config: How to reach the server.
        options: The options of the write.
        replaces: Whether the write replaces all rows of the table.
        traceparent: The trace that the job continues. None: no trace.
    """

    config: ClientConfig
    options: WriteOptions
    replaces: bool
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class JobTransaction:
    """The transaction that a job has begun. Picklable.

    Attributes:
        id: The id of the transaction. What is committed under one id is written once.
        attempt: Identifies the run of the job. All processes of one run join the transaction with it.
        token: Gives access to the transaction. Empty if the id is already committed, so that nothing is to be written.
        job: Which transaction this one follows. None: that is not checked.
    """

    id: str
    attempt: str
    token: str
    job: JobStep | None = None


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What an attempt of a task has staged. Picklable.

    Attributes:
        begun: The transaction.
        part: The id of the part, which no other attempt uses.
        requests: The number of requests in the part.
    """

    begun: JobTransaction
    part: str
    requests: int


def prepare_write(options: WriteOptions, schema: StructType, *, replaces: bool) -> WriteJob:
    """Checks everything that can be checked without rows, and creates the table if option `create` says so.

    Args:
        options: The options of the write.
        schema: The columns of the DataFrame.
        replaces: Whether the write replaces all rows of the table.

    Raises:
        SchemaMismatch: The DataFrame lacks columns of the table, or their types do not fit.
        UsageError: Options contradict each other or the columns.
        ScanKvError: The server refuses the write, or cannot be reached.
    """
    if replaces:
        options.check_overwrite()
    elif options.replace_where is not None:
        raise option_error("replace_where", 'is for mode("overwrite"): leave it out, or overwrite')
    if CHANGE_TYPE in schema.names and (replaces or options.operation == DELETE):
        what = 'mode("overwrite")' if replaces else "operation=delete"
        raise UsageError(
            f'column "{CHANGE_TYPE}" cannot be combined with {what}: both say what happens to each row. Leave out one '
            "of them"
        )
    extra = [name for name in CHANGE_COLUMNS if name in schema.names and name != CHANGE_TYPE]
    if extra and options.operation == UPSERT and options.columns is None:
        names = ", ".join(f'"{name}"' for name in extra)
        raise SchemaMismatch(f"change columns cannot be written to a table: call drop({names}) first", column=extra[0])
    rows = pa.RecordBatch.from_pylist([], arrow_columns(schema))
    with work_span("plan", options.table, options.traceparent) as traceparent, options.open_client() as client:
        table = _open_table(client, options, rows.schema)
        if replaces:
            require_key(table.name, table.primary_key, 'its rows are not replaced: write with mode("append")')
        _check_scope(rows, table, options)
        # Without rows nothing is staged; this only checks the names and types of the columns.
        _stage(client.transaction_part("none", "none"), table, options, rows)
        return WriteJob(config=client.config, options=options, replaces=replaces, traceparent=traceparent)


def begin(job: WriteJob, id_: str, attempt: str, step: JobStep | None = None) -> JobTransaction:
    """Begins the transaction of a job, or joins it. See `scankv.Client.transaction`."""
    with _span("begin", job), sync.Client(job.config) as client:
        transaction = client.transaction(id_, ttl=job.options.transaction_ttl, attempt=attempt, job=step)
        return JobTransaction(id_, attempt, transaction.token, step)


def stage(job: WriteJob, begun: JobTransaction, number: int, batches: Iterable[pa.RecordBatch]) -> StagedPart:
    """Stages the rows of a task, in a part of its own. The rows become visible with the commit.

    While one request is sent, the rows of the next one are taken from Spark, so this holds some 16 MiB of Arrow data.
    The error of a request is raised after the rows of the next request have been taken.

    Args:
        job: The write.
        begun: The transaction.
        number: The number of the partition. It makes the part recognizable in lists of parts.
        batches: The rows.

    Raises:
        InvalidKey: A value of a key column is null or does not fit the column.
        SchemaMismatch: A value of another column does not fit, or is null in a NOT NULL column.
        TransactionLost: The transaction was aborted, or has expired.
    """
    if not begun.token:
        return StagedPart(begun, "", 0)
    # If the rows end with an error, the client is closed before the thread is joined. That ends a running request.
    with (
        _span("write", job),
        ThreadPoolExecutor(1, "scankv-staging") as thread,
        sync.Client(job.config) as client,
    ):
        part = client.transaction_part(begun.token, f"{number}-{uuid.uuid4().hex}")
        table = retry_through_restart(lambda: sync.Client(job.config), lambda: client.table(job.options.table))
        under_way: Future[None] | None = None
        for rows in _gather(batches):
            _check_scope(rows, table, job.options)
            if under_way is not None:
                under_way.result()
            # In the context of this thread, which has the span.
            under_way = thread.submit(copy_context().run, _stage, part, table, job.options, rows)
        if under_way is not None:
            under_way.result()
        return StagedPart(begun, part.part, part.requests)


def commit(job: WriteJob, begun: JobTransaction, parts: Sequence[StagedPart]) -> None:
    """Commits these parts in their order, and nothing else. Does nothing if the transaction id is already committed.

    Raises:
        TransactionLost: The transaction has expired or was aborted. Nothing was written.
        ScanKvError: See `scankv.Transaction.commit`.
    """
    with _span("commit", job), sync.Client(job.config) as client:
        transaction = client.transaction(
            begun.id, ttl=job.options.transaction_ttl, attempt=begun.attempt, job=begun.job
        )
        if transaction.result is not None:
            return
        if any(part.begun.token != transaction.token for part in parts):
            transaction.abort()
            raise TransactionLost(
                f"the transaction on table {job.options.table} expired or was aborted while the job ran: nothing was "
                "written. Run the job again; option transaction_ttl says how long a job may be silent"
            )
        counted = [(part.part, part.requests) for part in parts]
        if job.replaces:
            deletes = retry_through_restart(
                lambda: sync.Client(job.config), lambda: _stage_deletes(client, job.options, transaction)
            )
            counted.insert(0, deletes)
        transaction.commit(counted)


def abort(job: WriteJob, begun: JobTransaction) -> None:
    """Makes the server drop the staged rows. If the server does not answer soon, the rows expire by themselves."""
    config = replace(job.config, operation_timeout=_ABORT_SECONDS)
    with suppress(ScanKvError), sync.Client(config) as client:
        client.abort_transaction(begun.token)


def _span(work: str, job: WriteJob) -> AbstractContextManager[str | None]:
    return work_span(work, job.options.table, job.traceparent)


def _stage_deletes(client: sync.Client, options: WriteOptions, transaction: sync.Transaction) -> tuple[str, int]:
    """Stages the deletion of the rows to replace. Returns the part, which must be applied first, and its requests."""
    # Always a new part: an earlier attempt may have staged the deletion of other rows.
    part = client.transaction_part(transaction.token, f"deletes-{uuid.uuid4().hex}")
    if options.replace_where is None:
        part.delete_all(client.table(options.table), mode="overwrite")
    else:
        part.delete(client.table(options.table), where=options.replace_where, mode="overwrite")
    return part.part, part.requests


def _check_scope(rows: pa.Table | pa.RecordBatch, table: sync.Table, options: WriteOptions) -> None:
    """Refuses rows that do not match option `replace_where`.

    Raises:
        UsageError: A row does not match, or the option is not a predicate.
        SchemaMismatch: The predicate does not fit the table or the rows.
    """
    if options.replace_where is None:
        return
    predicate = predicate_of(options.replace_where, table.schema)
    bound = bind(predicate, rows.schema)
    batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    outside = sum(batch.num_rows - (pc.sum(evaluate(bound, batch)).as_py() or 0) for batch in batches)
    if outside:
        raise option_error(
            "replace_where",
            f"must match every row that is written; it matches all but {counted(outside, 'row')} of a partition",
        )


def _stage(
    part: sync.TransactionPart, table: sync.Table, options: WriteOptions, rows: pa.Table | pa.RecordBatch
) -> None:
    if options.operation == DELETE:
        part.delete(table, rows, options.columns)
    elif not table.primary_key and options.columns is None:
        part.append(table, rows)
    else:
        part.upsert(table, rows, options.columns)


def _gather(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yields the same rows in tables of about the size of one request."""
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if gathered and (rows + batch.num_rows > _MOST_ROWS or size + batch.nbytes > _MOST_BYTES):
            yield pa.Table.from_batches(gathered)
            gathered, rows, size = [], 0, 0
        gathered.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    if rows:
        yield pa.Table.from_batches(gathered)


def _open_table(client: sync.Client, options: WriteOptions, schema: pa.Schema) -> sync.Table:
    """Opens the table, or creates it if it does not exist and option `create` is set."""
    try:
        return client.table(options.table)
    except TableNotFound as error:
        if not options.create:
            message = f'{error.message}; to create it, set option("create", "true") and option primary_key'
            raise TableNotFound(message, table=options.table) from None
    if CHANGE_TYPE in schema.names and schema.field(CHANGE_TYPE).type != pa.string():
        found = schema.field(CHANGE_TYPE).type
        raise SchemaMismatch(
            f'column "{CHANGE_TYPE}" must be a string (+I, -U, +U or -D), not {found}', column=CHANGE_TYPE
        )
    columns = pa.schema([column for column in schema if column.name != CHANGE_TYPE])
    try:
        return client.create_table(
            options.table,
            columns,
            primary_key=options.primary_key or (),
            bucket_key=options.bucket_key,
            buckets=options.buckets,
            merge_engine=options.merge_engine or "last_row",
            aggregators=dict(options.aggregators),
            version_column=options.version_column,
            sequence_column=options.sequence_column,
        )
    except TableExists:
        return client.table(options.table)


def arrow_columns(schema: StructType) -> pa.Schema:
    """Returns the Arrow types in which Spark will deliver the columns.

    Raises:
        SchemaMismatch: A column has a type that ScanKV does not have.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    fields = []
    for column in schema:
        if _has_variant(column.dataType):
            raise SchemaMismatch(
                f'column "{column.name}": ScanKV does not store type variant; write it as text, '
                f"to_json({column.name}), or extract values with variant_get",
                column=column.name,
            )
        try:
            fields.extend(arrow_schema(StructType([column])))
        except PySparkException as error:
            message = (
                f'column "{column.name}": ScanKV does not store type {column.dataType.simpleString()}; cast the column '
                "or drop it"
            )
            raise SchemaMismatch(message, column=column.name) from error
    return pa.schema(fields)


def _has_variant(type_: DataType) -> bool:
    """Returns whether a type is or contains a variant, which Spark would pass to Arrow as a struct of two binaries."""
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

    match type_:
        case VariantType():
            return True
        case ArrayType():
            return _has_variant(type_.elementType)
        case MapType():
            return _has_variant(type_.keyType) or _has_variant(type_.valueType)
        case StructType():
            return any(_has_variant(field.dataType) for field in type_.fields)
        case _:
            return False
