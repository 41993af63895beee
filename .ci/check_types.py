"""Checks that everything in the public packages has complete type annotations, as `pyright --verifytypes` finds them.

Type checkers infer what is not annotated, each in its own way, and take what they cannot infer for `Any`. So users get
the same types from all type checkers only where nothing is left to inference.

Types of pyarrow and of other packages that ship none count as known (`--ignoreexternal`): their users get them when
those packages add types. The server is not checked, because no user imports it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("scankv", "aio_client", "spark_bridge", "pyspark_scankv")
GENERATED = "_pb2_grpc."
"""Part of the names that are not checked: mypy-protobuf writes `grpc.aio.ServicerContext` without type arguments."""
FOLLOWS = "partially unknown"
"""In the messages about symbols that are incomplete because others are, which they use."""


def main() -> None:
    """Checks all packages; exits non-zero with the symbols whose types are incomplete."""
    # The analyses take seconds each, and most of that is reading the same imports, so they run at the same time.
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        reports = list(threads.map(verify, PACKAGES))
    found = [line for report in reports for line in problems_of(report)]
    if found:
        sys.exit("\n".join([line for line in found if FOLLOWS not in line] or found))
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
    """The symbols of a report that are checked: exported ones, and private ones that exported ones refer to."""
    return [symbol for symbol in report["symbols"] if GENERATED not in symbol["name"]]


def problems_of(report: dict[str, Any]) -> list[str]:
    """What is wrong with the types in a report, one line for each problem."""
    return [
        f"{place_of(problem)}{symbol['name']}: {' '.join(problem['message'].split())}"
        for symbol in symbols_of(report)
        if symbol["isTypeAmbiguous"] or not symbol["isTypeKnown"]
        for problem in symbol["diagnostics"]
    ]


def place_of(problem: dict[str, Any]) -> str:
    """The file and line of a problem, or nothing: those of base classes have none."""
    if "range" not in problem:
        return ""
    return f"{Path(problem['file']).relative_to(ROOT)}:{problem['range']['start']['line'] + 1}: "


if __name__ == "__main__":
    main()
