"""Runs the demo from start to end."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from rich.console import Console

from scankv.demo.embedded_server import embedded_server
from scankv.demo.flights import find_flights, true_figures
from scankv.demo.report import Report, checks_of
from scankv.demo.session import Outcome, run_session


def run() -> int:
    """Runs the demo and prints each step; returns the exit code, which is 1 if a figure differs from the source.

    Raises:
        UsageError: A package that the demo needs is not installed.
        ScanKvError: A call failed.
    """
    source = find_flights()
    report = Report(Console(highlight=False))
    report.print_title()
    with tempfile.TemporaryDirectory(prefix="scankv-demo-") as directory:
        try:
            outcome = asyncio.run(_with_server(source, Path(directory), report))
        except ExceptionGroup as group:
            raise _first_error(group) from group
    # pandas is used only now, because its memory would count as memory of the client.
    with report.step("source") as done:
        truth = true_figures(source)
        done(f"{truth.rows:,} flights read with pandas for comparison")
    return 0 if report.print_verdict(checks_of(outcome, truth), outcome.streamed) else 1


async def _with_server(source: Path, directory: Path, report: Report) -> Outcome:
    async with embedded_server(directory) as address:
        return await run_session(address, source, report)


def _first_error(group: ExceptionGroup) -> Exception:
    """Returns the first error in a group."""
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
