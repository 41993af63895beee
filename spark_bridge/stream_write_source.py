"""Spark's interface to writing the micro-batches of a streaming query. Needs PySpark 4.1."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from scankv.model.errors import TableRecreated
from spark_bridge.errors import short_errors
from spark_bridge.frozen_worker import freeze_worker
from spark_bridge.write_source import TaskMessage, partition_id, staged_parts, task_context

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_bridge.write_options import WriteOptions


class ScanKvStreamWriter(DataSourceStreamArrowWriter):
    """`query.writeStream.format("scankv")`: writes each micro-batch exactly once, in one transaction.

    Spark creates one instance where it plans a micro-batch, copies of which write in the tasks, and another instance to
    commit. Only the tasks know the id of the query. So each task begins the transaction, under an id that is the same
    in all of them. The server remembers the id while the table exists, so a committed micro-batch that Spark repeats is
    not written again. A table that was restored in the meantime may lack micro-batches that Spark will not repeat. No
    process of Spark remembers the last commit, so the server checks that the table has the previous micro-batch of the
    checkpoint.
    """

    def __init__(self, options: WriteOptions, schema: StructType, *, replaces: bool) -> None:
        """Called by `ScanKvDataSource.streamWriter`. Checks the options and columns.

        Raises:
            ScanKvError: As `spark_bridge.writing.prepare_write`.
        """
        from spark_bridge.restarts import retry_through_restart
        from spark_bridge.writing import prepare_write

        freeze_worker()
        options.check_stream()
        self._job = retry_through_restart(
            options.open_client, lambda: prepare_write(options, schema, replaces=replaces)
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Stages the rows of a task, unless the micro-batch is already committed."""
        from spark_bridge.micro_batches import job_step, missing_batches, transaction_id
        from spark_bridge.writing import begin, stage

        freeze_worker()
        query, batch, options = _property("sql.streaming.queryId"), int(_property(_BATCH)), self._job.options
        id_ = transaction_id(query, options.table, batch)
        accepted = options.accept_incarnation
        step = job_step(query, options.table, batch, replaces=self._job.replaces, accepted=accepted)
        # All tasks have the same attempt. That of a batch that another incarnation has is another one.
        attempt = sha256(f"{id_}{accepted or ''}".encode()).hexdigest()
        with short_errors():
            # A repeated micro-batch joins the transaction of its first run. The commit names the parts that count, so
            # parts of the first run are ignored.
            try:
                begun = begin(self._job, id_, attempt, step)
            except TableRecreated as error:
                raise missing_batches(error, batch) from None
            return TaskMessage(stage(self._job, begun, partition_id(), iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Commits a micro-batch. Does nothing if it is already committed."""
        from spark_bridge.micro_batches import missing_batches
        from spark_bridge.writing import commit

        freeze_worker()
        staged = staged_parts(messages)
        if staged:
            with short_errors():
                try:
                    commit(self._job, staged[0].begun, staged)
                except TableRecreated as error:
                    raise missing_batches(error, batchId) from None

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Aborts the transaction if a finished task has reported it. Otherwise a repeated micro-batch will join it."""
        from spark_bridge.writing import abort

        for staged in staged_parts(messages)[:1]:
            abort(self._job, staged.begun)


_BATCH = "streaming.sql.batchId"


def _property(name: str) -> str:
    value = task_context().getLocalProperty(name)
    assert value is not None, f"Spark has not set the property {name}"
    return value
