"""Runs random steps from a seed, or a script, and makes a script of a failure as short as it can.

A script has a line of JSON for each step. It stays valid when operations are added, which gives seeds another meaning.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import time
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeAlias

from tests.model.checker.operation import OPERATIONS, Arguments, CheckerOperation
from tests.model.checker.reads import check_all
from tests.model.checker.world import CheckerWorld

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from tests.model.checker.pairs import Coverage

__all__ = ["Failure", "Step", "from_lines", "replay", "run", "shorten", "to_lines"]

_MODULES: Final = (
    *("altering", "backups", "calls_at_once", "conditional", "copies", "counting", "damage", "definitions", "disk"),
    *("expiry", "failing", "following", "host", "lake", "logs", "open_transactions", "overlapping", "partitions"),
    *("parts_of_rows", "positions", "queries", "reads", "replacing", "resuming", "together", "undo", "unrecorded"),
    *("writers", "writes"),
)
# They fill the list of operations when they are imported.
for _name in _MODULES:
    import_module(f"tests.model.checker.{_name}")

_MOST_GAIN: Final = 20
"""A run prefers operations that could cover many pairs at most so many times."""
_DRAWS: Final = 4
"""It draws their arguments so often, and takes the table with which they could cover most."""

Step: TypeAlias = tuple[str, Arguments]
"""The name of an operation, and its arguments."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What a run has found.

    Attributes:
        steps: The steps so far. The last one failed.
        error: What it raised.
    """

    steps: list[Step]
    error: Exception

    def __str__(self) -> str:
        """Returns the script and the error."""
        return f"{to_lines(self.steps)}\n{type(self.error).__name__}: {self.error}"


def run(
    directory: Path,
    seed: int,
    *,
    seconds: float = math.inf,
    most_steps: float = math.inf,
    operations: Collection[str] | None = None,
    profile: str = "fast",
    coverage: Coverage | None = None,
) -> tuple[Failure | None, list[Step], Coverage]:
    """Draws and runs steps. Returns the failure, if any, all steps, and what was covered.

    Args:
        directory: An existing directory without a server in it.
        seed: Decides everything.
        seconds: The time after which no step begins.
        most_steps: The most steps.
        operations: The operations to choose from. Default: all.
        profile: "slow" also draws the slow ones.
        coverage: What earlier runs have covered. This run prefers what could cover more.
    """
    chooser, steps = random.Random(seed), list[Step]()
    of_profile = [each for each in OPERATIONS.values() if each.profile in ("fast", profile)]
    chosen = [each for each in of_profile if operations is None or each.name in operations]
    # Some operations are left out or frequent in each run, so that what is rare together meets somewhere.
    weights = [each.weight * chooser.choice([0.2, 1, 1, 3]) for each in chosen]
    until = time.monotonic() + seconds
    with CheckerWorld(directory) as world:
        world.coverage = coverage or world.coverage
        while time.monotonic() < until and len(steps) < most_steps:
            gains = [1 if coverage is None else 1 + min(_MOST_GAIN, coverage.gain(each.effects)) for each in chosen]
            operation = chooser.choices(chosen, [a * b for a, b in zip(weights, gains, strict=True)])[0]
            drawn = [operation.draw(world, chooser) for _ in range(1 if coverage is None else _DRAWS)]
            arguments = max(drawn, key=lambda each: _gain(operation, each, coverage))
            if arguments is None:
                continue
            # As JSON, so that a script does the same.
            steps.append((operation.name, json.loads(json.dumps(arguments))))
            if (error := _take(world, steps[-1])) is not None:
                return Failure(steps, error), steps, world.coverage
        if (error := _attempt(lambda: check_all(world))) is not None:
            return Failure(steps, error), steps, world.coverage
        return None, steps, world.coverage


def _gain(operation: CheckerOperation, arguments: Arguments | None, coverage: Coverage | None) -> int:
    """Returns how many pairs an operation with these arguments could cover."""
    if arguments is None or coverage is None:
        return -1
    table = arguments.get("table")
    return coverage.gain(operation.effects, table if isinstance(table, str) else None)


def replay(directory: Path, steps: Sequence[Step]) -> Failure | None:
    """Runs steps. Those that have become impossible, because others were left out, do nothing."""
    directory.mkdir()
    try:
        with CheckerWorld(directory) as world:
            for number, step in enumerate(steps, 1):
                if (error := _take(world, step)) is not None:
                    return Failure(list(steps[:number]), error)
            if (error := _attempt(lambda: check_all(world))) is not None:
                return Failure(list(steps), error)
        return None
    finally:
        shutil.rmtree(directory)


def shorten(directory: Path, failure: Failure, seconds: float) -> Failure:
    """Leaves out steps as long as a run still fails in the same way: larger parts first.

    Args:
        directory: An existing directory for the runs.
        failure: What to shorten.
        seconds: The time after which no run begins.
    """
    until, runs = time.monotonic() + seconds, 0

    def attempt(candidates: Iterable[list[Step]]) -> Failure | None:
        nonlocal runs
        for steps in candidates:
            if time.monotonic() > until:
                return None
            runs += 1
            found = replay(directory / str(runs), steps)
            if found is not None and type(found.error) is type(failure.error):
                return found
        return None

    part = max(1, len(failure.steps) // 2)
    while part:
        shorter = attempt(_without_parts(failure.steps, part))
        failure = shorter or failure
        part = min(part, len(failure.steps) // 2) if shorter else part // 2
    while (shorter := attempt(_shorter_lists(failure.steps))) is not None:
        failure = shorter
    return failure


def _without_parts(steps: Sequence[Step], part: int) -> Iterator[list[Step]]:
    """Yields the steps without each part of so many steps. The last step stays: it fails."""
    last = len(steps) - 1
    for start in range(0, last, part):
        yield [*steps[:start], *steps[min(start + part, last) :]]


def _shorter_lists(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Yields the steps with one half of a list of an argument each."""
    for number, (name, arguments) in enumerate(steps):
        for key, value in arguments.items():
            if isinstance(value, list) and len(value) > 1:
                for half in (value[: len(value) // 2], value[len(value) // 2 :]):
                    yield [*steps[:number], (name, {**arguments, key: half}), *steps[number + 1 :]]


def to_lines(steps: Sequence[Step]) -> str:
    """Returns a script."""
    return "\n".join(f"{name} {json.dumps(arguments)}" for name, arguments in steps)


def from_lines(text: str) -> list[Step]:
    """Returns the steps of a script. Lines that begin with # are comments."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name, json.loads(arguments)) for name, _, arguments in (line.partition(" ") for line in lines)]


def _take(world: CheckerWorld, step: Step) -> Exception | None:
    name, arguments = step

    def take() -> None:
        world.tick()
        OPERATIONS[name].run(world, arguments)

    return _attempt(take)


def _attempt(what: Callable[[], object]) -> Exception | None:
    """Returns the error that a function raises."""
    try:
        what()
    except Exception as error:  # each one is a finding
        return error
    return None
