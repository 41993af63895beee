"""Spark's interface to writing a DataFrame."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

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
    """What a finished task reports to the process that commits."""

    staged: StagedPart


class ScanKvWriter(DataSourceArrowWriter):
    """`df.write.format("scankv")`: writes all rows of a job in one transaction, or none.

    Spark creates one instance where it plans, which begins the transaction. Pickled copies stage rows in the tasks, and
    another copy commits or aborts.
    """

    def __init__(self, options: WriteOptions, schema: StructType, *, replaces: bool) -> None:
        """Called by `ScanKvDataSource.writer`. Checks the options and columns, and begins the transaction.

        Raises:
            ScanKvError: As `spark_bridge.writing.prepare_write`.
        """
        from spark_bridge.writing import begin, prepare_write

        freeze_worker()
        options.check_once()
        self._job = prepare_write(options, schema, replaces=replaces)
        # Without a colon: of all ids `family:number`, the server remembers the last one as long as the table exists.
        id_ = options.transaction_id or f"spark-{uuid.uuid4().hex}"
        self._begun = begin(self._job, id_, uuid.uuid4().hex, options.job_step)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Stages the rows of a task. Each attempt of a task stages a part of its own."""
        from spark_bridge.writing import stage

        freeze_worker()
        with short_errors():
            return TaskMessage(stage(self._job, self._begun, partition_id(), iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commits the parts of the successful attempts, and nothing that other attempts have staged."""
        from spark_bridge.writing import commit

        freeze_worker()
        with short_errors():
            commit(self._job, self._begun, staged_parts(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Aborts the transaction, which drops all staged rows."""
        from spark_bridge.writing import abort

        abort(self._job, self._begun)


def staged_parts(messages: Sequence[WriterCommitMessage | None]) -> list[StagedPart]:
    return [cast("TaskMessage", message).staged for message in messages if message is not None]


def task_context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "only tasks write"
    return context


def partition_id() -> int:
    return task_context().partitionId()
