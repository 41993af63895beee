"""Which snapshot a task reads: the one of the query execution that it belongs to.

Spark plans a DataFrame once, and keeps the plan for all of its actions. Nothing of ours runs when an action begins or
ends. So the plan says how a table is cut, not of which instant it is, and the tasks agree on the instant: each asks the
server for the shared snapshot that is named after its execution, which the first of them takes.

Rule: *no task of an execution reads another instant of a table than the others*, whenever it runs: tasks of other
branches of the query, later stages of an adaptive plan, attempts that are repeated, speculative ones. The server never
takes a second snapshot under the same name, so a task that comes when the first has ended fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from pyspark import TaskContext

# Of the QueryExecution, different in every Spark application; actions of one DataFrame may share it.
_QUERY: Final = "spark.sql.execution.query.id"
# Of the action, counted in the application; the same for all branches of a query, as the former.
_EXECUTION: Final = "spark.sql.execution.id"


@dataclass(frozen=True, slots=True)
class Execution:
    """What a task belongs to.

    Attributes:
        label: How Spark's pages and logs call it: `17`, or `stage-42`.
        query: Names the execution of a query in all the world. None outside of one, as in actions of an RDD: then what
            is read is as of one instant for each stage and `load()`.
    """

    label: str
    query: str | None = None

    @classmethod
    def current(cls) -> Execution:
        """That of the task that calls. It must be called in the task's own thread; elsewhere there is none."""
        context = TaskContext.get()
        if context is None:
            return cls("none")
        query = context.getLocalProperty(_QUERY)
        if query is None:
            return cls(f"stage-{context.stageId()}")
        number = context.getLocalProperty(_EXECUTION)
        return cls(f"{number}", f"{query} {number}")

    def snapshot_id(self, incarnation: str, plan: str) -> str:
        """The name of its snapshot of a table.

        Args:
            incarnation: The table.
            plan: Names what `load()` has returned.
        """
        scope = self.query or f"{plan} {self.label}"
        return f"spark-{self.label}-{sha256(f'{scope} {incarnation}'.encode()).hexdigest()[:32]}"
