"""What is measured, in order: the functions that write come after those that compare complete results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.field.clients.field_client import BELOW, PROJECTED, TOP, FieldClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.measure import Timing
    from benchmarks.workers import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much a run measures.

    Attributes:
        rows: The rows of T4.
        calls: The calls of one round of a sequential operation; concurrent ones make twice as many.
        callers: The number of concurrent callers.
        runs: The number of rounds that count.
        buckets: The number of buckets of the table.
    """

    rows: int
    calls: int
    callers: int
    runs: int
    buckets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldOperation:
    """One thing that is measured.

    Attributes:
        method: The name of the method of `FieldClient`, as in `FieldClient.CANNOT`.
        title: What is done.
        unit: What the rates count.
        run: Runs it once: takes the client's process, the scale, and a number that no other run has.
        warm_up: Whether a round that does not count comes first.
    """

    method: str
    title: str
    unit: str
    run: Callable[[Worker[FieldClient], Scale, int], Timing]
    warm_up: bool = True


def _concurrent(scale: Scale) -> int:
    return 2 * scale.calls


OPERATIONS: Final = (
    FieldOperation(
        method="load",
        title="Load",
        unit="rows/s",
        run=lambda client, scale, seed: client.call(FieldClient.load),
        warm_up=False,
    ),
    FieldOperation(
        method="scan", title="Full scan", unit="rows/s", run=lambda client, scale, seed: client.call(FieldClient.scan)
    ),
    FieldOperation(
        method="project",
        title=f"Projection: {' and '.join(PROJECTED)} of all rows",
        unit="rows/s",
        run=lambda client, scale, seed: client.call(FieldClient.project),
    ),
    FieldOperation(
        method="select",
        title=f"Predicate: amount < {BELOW:g} keeps 1 %; rows considered",
        unit="rows/s",
        run=lambda client, scale, seed: client.call(FieldClient.select),
    ),
    FieldOperation(
        method="count",
        title="Count with a predicate, for which no index exists; rows considered",
        unit="rows/s",
        run=lambda client, scale, seed: client.call(FieldClient.count, seed),
    ),
    FieldOperation(
        method="call_nothing",
        title="A call that does nothing, sequential",
        unit="calls/s",
        run=lambda client, scale, seed: client.call(FieldClient.call_nothing, scale.calls),
    ),
    FieldOperation(
        method="get",
        title="Point read, sequential",
        unit="calls/s",
        run=lambda client, scale, seed: client.call(FieldClient.get, scale.calls, seed),
    ),
    FieldOperation(
        method="get_concurrently",
        title="Point reads, concurrent",
        unit="calls/s",
        run=lambda client, scale, seed: client.call(
            FieldClient.get_concurrently, _concurrent(scale), scale.callers, seed
        ),
    ),
    FieldOperation(
        method="write",
        title="Durable one-row write, sequential",
        unit="calls/s",
        run=lambda client, scale, seed: client.call(FieldClient.write, scale.calls, seed),
    ),
    FieldOperation(
        method="write_concurrently",
        title="Durable one-row writes, concurrent",
        unit="calls/s",
        run=lambda client, scale, seed: client.call(
            FieldClient.write_concurrently, _concurrent(scale), scale.callers, seed
        ),
    ),
    FieldOperation(
        method="top_n",
        title=f"Top-{TOP} by amount, polled",
        unit="calls/s",
        run=lambda client, scale, seed: client.call(FieldClient.top_n, scale.calls),
    ),
    FieldOperation(
        method="change",
        title="A write and its arrival at a listener",
        unit="changes/s",
        run=lambda client, scale, seed: client.call(FieldClient.change, max(1, scale.calls // 4), seed),
    ),
)
"""All operations. `top_n` and those after it run with an index on `amount`."""

FIRST_INDEXED: Final = "top_n"
"""The index is built before this operation, so that the writes before it maintain none."""

POINT_OPERATIONS: Final = ("get_concurrently", "write_concurrently")
"""What is measured again with other numbers of callers."""

BY_BUCKETS: Final = ("scan", "get", "get_concurrently", "write_concurrently")
"""What is measured again, besides the load, with other numbers of buckets."""
