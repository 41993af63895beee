"""Simulates Spark's task context, for tests that run the code of a task without Spark."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest.mock import patch

from pyspark import TaskContext

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@contextmanager
def task_context(partition: int, properties: Mapping[str, str] | None = None, *, stage: int = 0) -> Iterator[None]:
    """Makes the block the task of a partition and stage, with these local properties."""
    known = dict(properties or {})
    context = SimpleNamespace(partitionId=lambda: partition, stageId=lambda: stage, getLocalProperty=known.get)
    with patch.object(TaskContext, "get", lambda: context):
        yield
