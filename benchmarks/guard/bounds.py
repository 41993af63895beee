"""Decides whether measured ratios are within the bounds around the committed values, and keeps the file of those."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

UPDATE_COMMAND: Final = ".venv/bin/python -m benchmarks.guard --update"

_BETTER_SHARE: Final = 0.5
"""A ratio below this share of the committed value should be committed, or a later slowdown would not be noticed."""

_HEADER: Final = f"""\
# Processor time of ScanKV as a multiple of the reference that was measured in the same run. `make guard` compares these
# values with new measurements. CONTRIBUTING.md ("The regression guard") explains when and how to change them:
# {UPDATE_COMMAND}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedRatio:
    """A ratio of processor times that the guard compares with a committed value. Less is better.

    Attributes:
        name: The name in the file of committed values.
        work: The work of ScanKV whose processor time counts.
        against: The reference whose processor time is the unit.
        tolerance: How many times the committed value is allowed.
    """

    name: str
    work: str
    against: str
    tolerance: float

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ValueError(f"the name of a ratio must have lowercase letters, digits and _, not {self.name!r}")
        if not 1 < self.tolerance < 2:
            raise ValueError(f"tolerance must be between 1 and 2 to notice a factor of two, not {self.tolerance:g}")


@dataclass(frozen=True, slots=True)
class RatioCheck:
    """A measured ratio beside the committed value.

    Attributes:
        ratio: The ratio.
        measured: Its measured value.
        committed: Its committed value.
        slowdown: By how much the machine may have slowed down the work more than its reference.
    """

    ratio: GuardedRatio
    measured: float
    committed: float
    slowdown: float = 1

    @property
    def at_most(self) -> float:
        """The greatest ratio that is allowed."""
        return self.committed * self.ratio.tolerance * self.slowdown

    @property
    def is_regression(self) -> bool:
        """Whether the work has become slower than is allowed."""
        return self.measured > self.at_most

    @property
    def is_outdated(self) -> bool:
        """Whether the work has become so much faster that the committed value should be refreshed."""
        return self.measured < self.committed * _BETTER_SHARE

    def __str__(self) -> str:
        result = "SLOWER" if self.is_regression else "faster" if self.is_outdated else "ok"
        return (
            f"{result:<6} {self.ratio.name}: measured {self.measured:.3g}, committed {self.committed:.3g}, "
            f"allowed up to {self.at_most:.3g} ({self.ratio.work}, against {self.ratio.against})"
        )


def advice(checks: Iterable[RatioCheck]) -> list[str]:
    """Returns what to do about checks, one sentence for each kind of problem."""
    known = list(checks)
    slower = [check.ratio.name for check in known if check.is_regression]
    faster = [check.ratio.name for check in known if check.is_outdated]
    found = []
    if slower:
        found.append(
            f"{', '.join(slower)}: this work takes more processor time than is allowed. Find the change that slowed it "
            f"down; if the cost is intended, commit new values: {_update_command(slower)}"
        )
    if faster:
        found.append(
            f"{', '.join(faster)}: this work takes less than half of the committed processor time. Refresh the values, "
            f"so that the guard notices when the gain is lost: {_update_command(faster)}"
        )
    return found


def read_values(path: Path, ratios: Iterable[GuardedRatio]) -> dict[str, float]:
    """Reads the committed values.

    Raises:
        ValueError: The file does not have exactly one positive number for each ratio.
    """
    found = tomllib.loads(path.read_text()) if path.exists() else {}
    expected = {ratio.name for ratio in ratios}
    if missing := expected - found.keys():
        raise ValueError(
            f"{path.name} has no value of {', '.join(sorted(missing))}: measure it with {_update_command(missing)}"
        )
    if unknown := found.keys() - expected:
        raise ValueError(f"{path.name} has values of unknown ratios: delete {', '.join(sorted(unknown))}")
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"{name} in {path.name} must be a positive number, not {value!r}")
    return {name: float(value) for name, value in found.items()}


def write_values(path: Path, ratios: Iterable[GuardedRatio], measured: Mapping[str, float]) -> None:
    """Writes measured ratios as the committed values. Ratios that were not measured keep their values."""
    kept = tomllib.loads(path.read_text()) if path.exists() else {}
    lines = [_HEADER]
    for ratio in ratios:
        value = measured.get(ratio.name, kept.get(ratio.name))
        if value is not None:
            lines += [f"# {ratio.work}, against {ratio.against}", f"{ratio.name} = {float(value):.3g}", ""]
    path.write_text("\n".join(lines).rstrip() + "\n")


def _update_command(names: Iterable[str]) -> str:
    return " ".join([UPDATE_COMMAND, *(f"--only {name}" for name in sorted(names))])
