"""The demonstration from beginning to end."""

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
    """Runs it and prints what it does; returns the exit code, 1 when a figure differs from the source.

    Raises:
        UsageError: A package that it needs is not installed.
        ScanKvError: The server did not do what it was asked.
    """
    source = find_flights()
    report = Report(Console(highlight=False))
    report.title()
    with tempfile.TemporaryDirectory(prefix="scankv-demo-") as directory:
        try:
            outcome = asyncio.run(_with_server(source, Path(directory), report))
        except ExceptionGroup as group:
            raise _first_error(group) from group
    # Only now: pandas would count as memory of the client.
    with report.step("source") as done:
        truth = true_figures(source)
        done(f"{truth.rows:,} flights read with pandas for comparison")
    return 0 if report.verdict(checks_of(outcome, truth), outcome.streamed) else 1


async def _with_server(source: Path, directory: Path, report: Report) -> Outcome:
    async with embedded_server(directory) as address:
        return await run_session(address, source, report)


def _first_error(group: ExceptionGroup) -> Exception:
    """The error that ended a group of tasks."""
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
