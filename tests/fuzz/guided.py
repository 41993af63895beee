"""Fuzzes one target with coverage guidance: `python -m tests.fuzz.guided TARGET [OPTION OF LIBFUZZER]... CORPUS`."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["scankv", "streaming_server"]):
    from tests.fuzz.targets import TARGETS


def main(arguments: list[str]) -> None:
    """Writes the valid inputs of the target to the corpus, and fuzzes until a limit of the options is reached."""
    target, corpus = TARGETS[arguments[1]], Path(arguments[-1])
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed {number}").write_bytes(seed)
    atheris.Setup([arguments[0], *arguments[2:]], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
