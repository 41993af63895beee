"""What is a seeded fault? A change of the source that breaks a promise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededFault:
    """One fault.

    Attributes:
        name: Its name.
        breaks: The promise that it breaks.
        file: The file that it changes.
        edits: The texts to replace, each of which the file has once, and what replaces them.
        seed: A seed that found it when it was last measured by `find_faults`, for `make soak`. Later operations change
            what a seed draws.
        has_script: Whether it takes a script in `SCRIPTS` to find it soon: `NAME.txt`.
    """

    name: str
    breaks: str
    file: str
    edits: tuple[tuple[str, str], ...]
    seed: int = 0
    has_script: bool = False
