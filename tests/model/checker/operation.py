"""What is an operation of the checker? The list of all of them is filled by the modules that define them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.model.checker.world import CheckerWorld

Arguments: TypeAlias = dict[str, Any]
"""The arguments of a step: everything it needs, as JSON, so that it can run without the steps before it."""


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
        OPERATIONS[name] = CheckerOperation(
            name=name, weight=weight, draw=draw, run=run, profile=profile, effects=named
        )
        return run

    return register
