"""Writing: what is checked where Spark plans, what each task stages, and the one commit of all of it."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from aio_client import ScanKvError, SchemaMismatch, TableExists, TableNotFound, TransactionLost, sync
from scankv.model.errors import UsageError
from scankv.model.tables.schema import CHANGE_COLUMNS, CHANGE_TYPE
from spark_bridge.casting import arrow_schema
from spark_bridge.restarts import riding_through
from spark_bridge.write_options import DELETE, UPSERT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from pyspark.sql.types import DataType, StructType

    from aio_client import ClientConfig
    from spark_bridge.write_options import WriteOptions

# A server that is away must not hold up a job that has failed: what was staged expires.
_ABORT_SECONDS: Final = 5.0
# What one request takes.
_MOST_ROWS: Final = 100_000
_MOST_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteJob:
    """What is written, as every process of a job knows it. Picklable.

    Attributes:
        config: How the server is reached.
        options: What was asked for.
        replaces: Whether the rows that are there go.
    """

    config: ClientConfig
    options: WriteOptions
    replaces: bool


@dataclass(frozen=True, slots=True)
class JobTransaction:
    """The transaction of a job. Picklable.

    Attributes:
        id: What it is.
        attempt: Who may take part.
        token: Names it; empty when the id was committed before, so that there is nothing to write.
    """

    id: str
    attempt: str
    token: str


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What a task has staged. Picklable.

    Attributes:
        begun: The transaction.
        part: The part, of this attempt of the task alone.
        requests: How many requests it has.
    """

    begun: JobTransaction
    part: str
    requests: int


def planned_write(options: WriteOptions, schema: StructType, *, replaces: bool) -> WriteJob:
    """Checks all that can be checked without rows, and creates the table where that was asked for.

    Args:
        options: What is asked for.
        schema: The columns of the DataFrame.
        replaces: Whether the rows that are there go.

    Raises:
        SchemaMismatch: The DataFrame does not have the table's columns, or not in types that fit.
        UsageError: Options do not go together, or with the columns.
        ScanKvError: What the server refuses; or it cannot be reached.
    """
    if replaces:
        options.check_overwrite()
    if CHANGE_TYPE in schema.names and (replaces or options.operation == DELETE):
        what = 'mode("overwrite")' if replaces else "operation=delete"
        raise UsageError(f'column "{CHANGE_TYPE}" says what becomes of each row, and so does {what}: drop one of them')
    told = [name for name in CHANGE_COLUMNS if name in schema.names and name != CHANGE_TYPE]
    if told and options.operation == UPSERT and options.columns is None:
        names = ", ".join(f'"{name}"' for name in told)
        raise SchemaMismatch(
            f"no table has columns of a stream of changes: drop({names}) before writing", column=told[0]
        )
    rows = pa.RecordBatch.from_pylist([], _arrow_columns(schema))
    with sync.connect(options.url) as client:
        table = _table(client, options, rows.schema)
        # Of no rows there is nothing to stage, so all that this does is to check names and types.
        _stage(client.transaction_part("none", "none"), table, options, rows)
        return WriteJob(config=client.config, options=options, replaces=replaces)


def begin(job: WriteJob, id_: str, attempt: str) -> JobTransaction:
    """Begins the transaction of a job, or takes part in it; see `scankv.Client.transaction`."""
    with sync.connect(**asdict(job.config)) as client:
        transaction = client.transaction(id_, ttl=job.options.transaction_ttl, attempt=attempt)
        return JobTransaction(id_, attempt, transaction.token)


def stage(job: WriteJob, begun: JobTransaction, number: int, batches: Iterable[pa.RecordBatch]) -> StagedPart:
    """Stages the rows of a task, in a part that only this call knows; nothing is seen of them before the commit.

    One request is staged while the rows of the next are taken from Spark: so it holds some 16 MiB of Arrow data. What
    goes wrong with one is raised behind the rows of the next.

    Args:
        job: What is written.
        begun: The transaction.
        number: Which partition it is, for those who look at parts.
        batches: The rows.

    Raises:
        SchemaMismatch: A value does not fit, or is null in a NOT NULL column; InvalidKey for one of a key.
        TransactionLost: The job was aborted, or has expired.
    """
    if not begun.token:
        return StagedPart(begun, "", 0)
    # Closed first, the client has a request that is under way end when the rows break off.
    with ThreadPoolExecutor(1, "scankv-staging") as thread, sync.connect(**asdict(job.config)) as client:
        part = client.transaction_part(begun.token, f"{number}-{uuid.uuid4().hex}")
        table = riding_through(job.config.address, lambda: client.table(job.options.table))
        under_way: Future[None] | None = None
        for rows in _gathered(batches):
            if under_way is not None:
                under_way.result()
            under_way = thread.submit(_stage, part, table, job.options, rows)
        if under_way is not None:
            under_way.result()
        return StagedPart(begun, part.part, part.requests)


def commit(job: WriteJob, begun: JobTransaction, parts: Sequence[StagedPart]) -> None:
    """Commits what these parts have, and nothing else, in their order; once for an id, however often it is repeated.

    Raises:
        TransactionLost: The transaction has expired, or was aborted. Nothing was written.
        ScanKvError: What else forbids it; see `scankv.Transaction.commit`.
    """
    with sync.connect(**asdict(job.config)) as client:
        transaction = client.transaction(begun.id, ttl=job.options.transaction_ttl, attempt=begun.attempt)
        if transaction.result is not None:
            return
        if any(part.begun.token != transaction.token for part in parts):
            transaction.abort()
            raise TransactionLost(
                f"what was written to table {job.options.table} has expired or was aborted while the job ran: nothing "
                "was written. Run it again; option transaction_ttl says how long a job may be silent"
            )
        counted = [(part.part, part.requests) for part in parts]
        if job.replaces:
            deletes = riding_through(job.config.address, lambda: _stage_deletes(client, job.options.table, transaction))
            counted.insert(0, deletes)
        transaction.commit(counted)


def abort(job: WriteJob, begun: JobTransaction) -> None:
    """Has the server drop what was staged. When it does not answer soon, that expires."""
    config = replace(job.config, operation_timeout=_ABORT_SECONDS)
    with suppress(ScanKvError), sync.connect(**asdict(config)) as client:
        client.abort_transaction(begun.token)


def _stage_deletes(client: sync.Client, name: str, transaction: sync.Transaction) -> tuple[str, int]:
    """Stages the deletion of all rows that there are now: the part, which is to be applied first, and its requests."""
    # What an earlier try has staged may be of other rows.
    part = client.transaction_part(transaction.token, f"deletes-{uuid.uuid4().hex}")
    part.delete_all(client.table(name), mode="overwrite")
    return part.part, part.requests


def _stage(
    part: sync.TransactionPart, table: sync.Table, options: WriteOptions, rows: pa.Table | pa.RecordBatch
) -> None:
    if options.operation == DELETE:
        part.delete(table, rows, options.columns)
    else:
        part.upsert(table, rows, options.columns)


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same rows, about as many at a time as a request takes."""
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


def _table(client: sync.Client, options: WriteOptions, schema: pa.Schema) -> sync.Table:
    """The table, created if that was asked for and it is not there."""
    try:
        return client.table(options.table)
    except TableNotFound as error:
        if not options.create:
            message = f'{error.message}; option("create", "true") with primary_key creates it'
            raise TableNotFound(message, table=options.table) from None
    if CHANGE_TYPE in schema.names and schema.field(CHANGE_TYPE).type != pa.string():
        raise SchemaMismatch(f'column "{CHANGE_TYPE}" is a string: +I, -U, +U or -D', column=CHANGE_TYPE)
    columns = pa.schema([column for column in schema if column.name != CHANGE_TYPE])
    try:
        return client.create_table(
            options.table,
            columns,
            primary_key=options.primary_key,
            buckets=options.buckets,
            merge_engine=options.merge_engine or "last_row",
            aggregates=dict(options.aggregates),
            version_column=options.version_column,
            sequence_column=options.sequence_column,
        )
    except TableExists:
        return client.table(options.table)


def _arrow_columns(schema: StructType) -> pa.Schema:
    """The columns as they will come. Raises SchemaMismatch for one that Arrow does not have."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    fields = []
    for column in schema:
        if _has_variant(column.dataType):
            raise SchemaMismatch(
                f'column "{column.name}": ScanKV has no variant; write it as text, to_json({column.name}), or take out '
                "of it what is needed, with variant_get",
                column=column.name,
            )
        try:
            fields.extend(arrow_schema(StructType([column])))
        except PySparkException as error:
            message = f'column "{column.name}": ScanKV has no {column.dataType.simpleString()}'
            raise SchemaMismatch(message, column=column.name) from error
    return pa.schema(fields)


def _has_variant(type_: DataType) -> bool:
    """Whether it is a variant or contains one: to Arrow, Spark would give its two binary fields as a struct."""
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
