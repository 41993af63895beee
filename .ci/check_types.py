"""Checks with `pyright --verifytypes` that all symbols in the public packages have complete type annotations.

Each type checker infers missing annotations in its own way and uses `Any` where it cannot. So users get the same types
from all type checkers only if every symbol is annotated.

Packages without types count as typed (`--ignoreexternal`): users get their types when those packages add them. Classes
of pyarrow are generic in its stubs only, so they are complete without arguments. The server is not checked, since no
user imports it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("scankv", "aio_client", "spark_bridge", "pyspark_scankv")
GENERATED = "_pb2_grpc."
"""Names that contain this are skipped: mypy-protobuf writes `grpc.aio.ServicerContext` without type arguments."""
FOLLOWS = re.compile("partially unknown|No docstring found")
"""Messages that match this are about symbols that are incomplete only because they use incomplete symbols."""
GENERIC_IN_STUBS = re.compile(
    r"\w*(Scalar|Array|Field|Type)\[Unknown[^]]*\]"
    r"|Type argument \d for class \"\w*(Scalar|Array|Field|Type)\" has unknown type"
)
"""What messages say of classes of pyarrow without arguments."""


def main() -> None:
    """Checks all packages. Exits with code 1 and a list of the symbols whose types are incomplete."""
    # Concurrently, since each analysis takes seconds.
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        reports = list(threads.map(verify, PACKAGES))
    found = [line for report in reports for line in problems_of(report) if is_cause(line)]
    if found:
        sys.exit("\n".join(found))
    checked = sum(len(symbols_of(report)) for report in reports)
    print(f"the types of all {checked:,} symbols in {', '.join(PACKAGES)} are complete")


def verify(package: str) -> dict[str, Any]:
    """Returns pyright's report on the types of a package."""
    # Pyright finds the packages of the first Python on PATH; with --verifytypes it ignores --pythonpath.
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    completed = subprocess.run(
        [sys.executable, "-m", "pyright", "--verifytypes", package, "--ignoreexternal", "--outputjson"],
        cwd=ROOT,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    try:
        report: dict[str, Any] = json.loads(completed.stdout)["typeCompleteness"]
    except (ValueError, KeyError):
        sys.exit(f"pyright failed for {package}:\n{completed.stdout}{completed.stderr}")
    if not report.get("pyTypedPath") or not symbols_of(report):
        sys.exit(f"pyright found no typed package {package}: {report.get('packageRootDirectory') or 'no directory'}")
    return report


def symbols_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the symbols to check: exported symbols, and private symbols that exported symbols refer to."""
    return [symbol for symbol in report["symbols"] if GENERATED not in symbol["name"]]


def problems_of(report: dict[str, Any]) -> list[str]:
    """Returns the problems in a report, one line each."""
    return [
        f"{place_of(problem)}{symbol['name']}: {' '.join(problem['message'].split())}"
        for symbol in symbols_of(report)
        if symbol["isTypeAmbiguous"] or not symbol["isTypeKnown"]
        for problem in symbol["diagnostics"]
    ]


def is_cause(problem: str) -> bool:
    """Returns whether a problem does not follow from another one."""
    rest, of_pyarrow = GENERIC_IN_STUBS.subn("", problem)
    return "Unknown" in rest or not (of_pyarrow or FOLLOWS.search(rest))


def place_of(problem: dict[str, Any]) -> str:
    """Returns the file and line of a problem; empty for a problem of a base class, which has no location."""
    if "range" not in problem:
        return ""
    return f"{Path(problem['file']).relative_to(ROOT)}:{problem['range']['start']['line'] + 1}: "


if __name__ == "__main__":
    main()
