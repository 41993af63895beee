"""Measures the operations: all systems that can take part alternate within every round."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING

from benchmarks.field.clients.field_client import FieldClient
from benchmarks.field.operations import FIRST_INDEXED, OPERATIONS, POINT_OPERATIONS, FieldOperation, Scale
from benchmarks.measure import progress, run_interleaved

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.field.competitors.competitor import Competitor
    from benchmarks.measure import Timing


@dataclass(frozen=True, slots=True)
class Measured:
    """The rounds of one operation of one system.

    Attributes:
        rates: The rows or calls per second of each round.
        client_micros: The client's processor time per row or call of each round, in microseconds.
        server_micros: The same of the server.
    """

    rates: Sequence[float]
    client_micros: Sequence[float]
    server_micros: Sequence[float]


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a system takes, in MiB.

    Attributes:
        client: The memory of the client after the load.
        server: The memory of all processes of the server after the load.
        server_at_end: The same after the last operation.
        disk: The disk after the load.
        disk_at_end: The disk after the last operation.
    """

    client: float
    server: float
    server_at_end: float
    disk: float
    disk_at_end: float


@dataclass(slots=True)
class FieldComparison:
    """Everything that was measured at one scale.

    Attributes:
        scale: The scale.
        measured: By method and system.
        by_callers: By method, number of callers, and system.
        footprints: By system.
    """

    scale: Scale
    measured: dict[str, dict[str, Measured]] = field(default_factory=dict)
    by_callers: dict[str, dict[int, dict[str, Measured]]] = field(default_factory=dict)
    footprints: dict[str, Footprint] = field(default_factory=dict)


def compare(
    directory: Path,
    systems: Sequence[type[Competitor]],
    scale: Scale,
    *,
    methods: Sequence[str] = (),
    caller_counts: Sequence[int] = (),
) -> FieldComparison:
    """Starts all systems, measures them in turn, and stops them.

    Args:
        directory: An existing directory for the data.
        systems: The systems.
        scale: How much to measure.
        methods: The operations, besides the load. Default: all.
        caller_counts: Further numbers of callers, with which the concurrent operations run.
    """
    found, seeds = FieldComparison(scale), count(1)
    with ExitStack() as stack:
        running = {}
        for number, system in enumerate(systems):
            progress(f"starting {system.NAME}")
            name = f"{scale.rows}-{scale.buckets}-{number}"
            running[system.NAME] = stack.enter_context(system(directory / name, scale.rows, scale.buckets))
        for each in running.values():
            each.client.wait_ready()
        for operation in OPERATIONS:
            if methods and operation.method not in ("load", *methods):
                continue
            if operation.method == FIRST_INDEXED:
                _build_indexes(running)
            found.measured[operation.method] = _measure(running, operation, scale, seeds)
            if operation.method == "load":
                for name, each in running.items():
                    progress(f"waiting for {name}")
                    each.client.call(FieldClient.settle)
                loaded = {name: (each.memory_mebibytes(), each.disk_mebibytes()) for name, each in running.items()}
            if operation.method in POINT_OPERATIONS:
                found.by_callers[operation.method] = {
                    callers: _measure(running, operation, replace(scale, callers=callers), seeds)
                    for callers in caller_counts
                }
        for name, each in running.items():
            (client, server), disk = loaded[name]
            found.footprints[name] = Footprint(client, server, each.memory_mebibytes()[1], disk, each.disk_mebibytes())
    return found


def _build_indexes(running: Mapping[str, Competitor]) -> None:
    for name, each in running.items():
        if FIRST_INDEXED not in each.CLIENT.CANNOT:
            progress(f"indexing in {name}")
            each.client.call(FieldClient.index)


def _measure(
    running: Mapping[str, Competitor], operation: FieldOperation, scale: Scale, seeds: count[int]
) -> dict[str, Measured]:
    progress(f"{operation.title}, {scale.rows:,} rows, {scale.callers} callers")
    recorders = {
        name: _Recorder(each, operation, scale, seeds)
        for name, each in running.items()
        if operation.method not in each.CLIENT.CANNOT
    }
    rates = run_interleaved(scale.runs, {name: each.run for name, each in recorders.items()}, warm_up=operation.warm_up)
    return {name: recorders[name].result(found) for name, found in rates.items()}


class _Recorder:
    """Runs an operation, and records the processor time beside the rates of `run_interleaved`."""

    def __init__(self, competitor: Competitor, operation: FieldOperation, scale: Scale, seeds: count[int]) -> None:
        self._competitor = competitor
        self._operation = operation
        self._scale = scale
        self._seeds = seeds
        self._micros: list[tuple[float, float]] = []

    def run(self) -> Timing:
        before = self._competitor.cpu_seconds()
        timing = self._operation.run(self._competitor.client, self._scale, next(self._seeds))
        after = self._competitor.cpu_seconds()
        client, server = (1e6 * (now - then) / timing.rows for now, then in zip(after, before, strict=True))
        self._micros.append((client, server))
        return timing

    def result(self, rates: Sequence[float]) -> Measured:
        # A warm-up is recorded, too, and does not count.
        counted = self._micros[-len(rates) :]
        return Measured(rates, [client for client, _ in counted], [server for _, server in counted])
