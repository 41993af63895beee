"""What is an operation of the checker? The list of all of them is filled by the modules that define them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.model.checker.world import CheckerWorld

Arguments: TypeAlias = dict[str, Any]
"""The arguments of a step: everything it needs, as JSON, so that it can run without the steps before it.

`"@5"` is a time: 5 seconds after that of the server, which counts in periods of `PERIOD_SECONDS` for this.
"""

PERIOD_SECONDS: Final = 500

CLOCK_START: Final = datetime.fromtimestamp(4_000_000_000, UTC)
"""What the clock of a server of the checker shows when it starts. It is in the future for those of restored backups."""

_TIME: Final = re.compile(r"@(-?\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckerOperation:
    """Something that happens to a server.

    Attributes:
        name: Its name.
        weight: How often it is drawn.
        draw: Chooses its arguments. None: it cannot happen now.
        run: Does it, compares what the server answers with the model, and records on which tables it took effect. Does
            nothing if the world does not have what the arguments name, because a step before it was left out.
        profile: The runs that draw it: all, if it is "fast".
        effects: What it records, as in the list of pairs.
    """

    name: str
    weight: float
    draw: Callable[[CheckerWorld, Random], Arguments | None]
    run: Callable[[CheckerWorld, Arguments], None]
    profile: str
    effects: tuple[str, ...]


OPERATIONS: Final[dict[str, CheckerOperation]] = {}


def define(
    name: str,
    weight: float,
    draw: Callable[[CheckerWorld, Random], Arguments | None],
    profile: str = "fast",
    effects: tuple[str, ...] | None = None,
) -> Callable[[Callable[[CheckerWorld, Arguments], None]], Callable[[CheckerWorld, Arguments], None]]:
    """Makes a function the `run` of an operation. Its only effect has its name unless `effects` says otherwise."""
    named = (name,) if effects is None else effects

    def register(run: Callable[[CheckerWorld, Arguments], None]) -> Callable[[CheckerWorld, Arguments], None]:
        assert name not in OPERATIONS

        def run_with_times(world: CheckerWorld, arguments: Arguments) -> None:
            period = CLOCK_START + timedelta(seconds=world.now() // PERIOD_SECONDS * PERIOD_SECONDS)
            run(world, with_times(arguments, period))

        OPERATIONS[name] = CheckerOperation(
            name=name, weight=weight, draw=draw, run=run_with_times, profile=profile, effects=named
        )
        return run

    return register


def with_times(value: Any, period: datetime) -> Any:  # of JSON
    """Returns a value with times for the texts that stand for them."""
    if isinstance(value, dict):
        return {key: with_times(each, period) for key, each in value.items()}
    if isinstance(value, list):
        return [with_times(each, period) for each in value]
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    return value if found is None else period + timedelta(seconds=int(found[1]))
