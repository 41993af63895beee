"""What writes a DataFrame, and a streaming query, into a table, as Spark sees it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, cast

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from spark_bridge.errors import short_errors
from spark_bridge.frozen_worker import freeze_worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_bridge.write_options import WriteOptions
    from spark_bridge.writing import StagedPart


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """What a task that has ended tells whoever commits."""

    staged: StagedPart


class ScanKvWriter(DataSourceArrowWriter):
    """`df.write.format("scankv")`: all rows of a job in one transaction, or none.

    Made where Spark plans, which begins the transaction; pickled copies stage in the tasks, another commits or aborts.
    """

    def __init__(self, options: WriteOptions, schema: StructType, *, replaces: bool) -> None:
        """Called by `ScanKvDataSource.writer`. Checks options and columns, and begins the transaction.

        Raises:
            ScanKvError: As `spark_bridge.writing.planned_write`.
        """
        from spark_bridge.writing import begin, planned_write

        freeze_worker()
        self._job = planned_write(options, schema, replaces=replaces)
        # Not of a family of ids, of which the last one would be kept for good.
        id_ = options.transaction_id or f"spark-{uuid.uuid4().hex}"
        self._begun = begin(self._job, id_, uuid.uuid4().hex)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Stages the rows of a task. Each attempt of it is a part of its own."""
        from spark_bridge.writing import stage

        freeze_worker()
        with short_errors():
            return TaskMessage(stage(self._job, self._begun, _partition(), iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commits what the attempts have staged that count, and nothing of others."""
        from spark_bridge.writing import commit

        freeze_worker()
        with short_errors():
            commit(self._job, self._begun, _staged(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drops everything."""
        from spark_bridge.writing import abort

        abort(self._job, self._begun)


class ScanKvStreamWriter(DataSourceStreamArrowWriter):
    """`query.writeStream.format("scankv")`: each micro-batch in one transaction, once.

    Spark makes one where it plans a micro-batch, copies of which write in its tasks, and another one to commit. Only
    the tasks know which query it is. So they begin the transaction, all of them the same one, whose id the server keeps
    for the table's life: a micro-batch that was committed and comes again is known.
    """

    def __init__(self, options: WriteOptions, schema: StructType, *, replaces: bool) -> None:
        """Called by `ScanKvDataSource.streamWriter`. Checks options and columns.

        Raises:
            ScanKvError: As `spark_bridge.writing.planned_write`.
        """
        from spark_bridge.restarts import riding_through
        from spark_bridge.writing import planned_write

        freeze_worker()
        options.check_stream()
        self._job = riding_through(options.url, lambda: planned_write(options, schema, replaces=replaces))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Stages the rows of a task, unless the micro-batch was committed before."""
        from spark_bridge.writing import begin, stage

        freeze_worker()
        id_ = transaction_id(_property("sql.streaming.queryId"), self._job.options.table, _property(_BATCH))
        with short_errors():
            # A micro-batch that comes again takes part in what is left of it: its parts are named, others do not count.
            begun = begin(self._job, id_, sha256(id_.encode()).hexdigest())
            return TaskMessage(stage(self._job, begun, _partition(), iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Commits a micro-batch; nothing happens when it is committed."""
        from spark_bridge.writing import commit

        freeze_worker()
        staged = _staged(messages)
        if staged:
            with short_errors():
                commit(self._job, staged[0].begun, staged)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Drops what was staged, where a task has ended that tells what; else the micro-batch goes on with it."""
        from spark_bridge.writing import abort

        for staged in _staged(messages)[:1]:
            abort(self._job, staged.begun)


_BATCH = "streaming.sql.batchId"


def transaction_id(query: str, table: str, batch: str) -> str:
    """The id of a micro-batch's transaction: those of one query and table are equal up to the last `:`."""
    return f"spark:{query}:{sha256(table.encode()).hexdigest()[:16]}:{batch}"


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedPart]:
    return [cast("TaskMessage", message).staged for message in messages if message is not None]


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "only tasks write"
    return context


def _partition() -> int:
    return _context().partitionId()


def _property(name: str) -> str:
    value = _context().getLocalProperty(name)
    assert value is not None, f"Spark has not said {name}"
    return value
