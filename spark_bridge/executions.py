"""Decides which snapshot a task reads: the one that belongs to its query execution.

Spark plans a DataFrame once and keeps the plan for all of its actions. None of our code runs when an action begins or
ends. So the plan says how a table is divided among tasks, but not which instant they read. The tasks agree on the
instant themselves: each asks the server for the shared snapshot that is named after its execution, and the first task
to ask creates it.

Rule: *all tasks of an execution read the same instant of a table*, whenever they run. This includes tasks of other
branches of the query, later stages of an adaptive plan, repeated attempts, and speculative attempts. The server never
creates a second snapshot under the same name, so a task that starts after the snapshot has ended fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from pyspark import TaskContext

# Identifies the QueryExecution; different in every Spark application. Actions of one DataFrame may share it.
_QUERY: Final = "spark.sql.execution.query.id"
# Counts the actions of the application. All branches of a query have the same number, as they have the same query id.
_EXECUTION: Final = "spark.sql.execution.id"


@dataclass(frozen=True, slots=True)
class Execution:
    """The execution of a query, or the stage, that a task belongs to.

    Attributes:
        label: Its name in Spark's web pages and logs: `17`, or `stage-42`.
        query: A globally unique id of the query execution. None outside of a query, as in actions of an RDD; then the
            tasks of one stage and one `load()` read the same instant.
    """

    label: str
    query: str | None = None

    @classmethod
    def current(cls) -> Execution:
        """Returns the execution of the calling task.

        Call it in the task's own thread. In any other thread Spark has no task context, and the label is `none`.
        """
        context = TaskContext.get()
        if context is None:
            return cls("none")
        query = context.getLocalProperty(_QUERY)
        if query is None:
            return cls(f"stage-{context.stageId()}")
        number = context.getLocalProperty(_EXECUTION)
        return cls(f"{number}", f"{query} {number}")

    def snapshot_id(self, incarnation: str, plan: str) -> str:
        """Returns the id of this execution's snapshot of a table.

        Args:
            incarnation: The incarnation of the table.
            plan: The id of the read plan, which is new with each `load()`.
        """
        scope = self.query or f"{plan} {self.label}"
        return f"spark-{self.label}-{sha256(f'{scope} {incarnation}'.encode()).hexdigest()[:32]}"
