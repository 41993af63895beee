"""How a command ends: its exit code, and what it says on standard error when it failed.

0 done, or the reader of the output closed its pipe; 1 failed; 2 wrong usage; 130 interrupted; 143 terminated.
`serve` adds its own. What is not expected to fail shows a traceback.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperGroup

from scankv.formats.printable import printable
from scankv.model.errors import ScanKvError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

FAILED: Final = 1
INTERRUPTED: Final = 130
TERMINATED: Final = 143

_ROOMS: Final = ("aio_client", "scankv", "streaming_server")


class Commands(TyperGroup):
    """The group of all commands; gives every one of them the same ending."""

    def invoke(self, ctx: Any) -> object:  # noqa: ANN401  # typer has moved the class of its contexts
        """Runs the command that was asked for."""
        try:
            result: object = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except ScanKvError as error:
            complain(error.message)
            raise typer.Exit(FAILED) from error
        except BrokenPipeError:
            _abandon_stdout()
            raise typer.Exit from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def complain(message: str) -> None:
    """Says on standard error why the command failed: in one line, or on a terminal in those that the message has."""
    shown = message if sys.stderr.isatty() else " ".join(message.split())
    typer.echo(f"scankv: error: {printable(shown, lines=True)}", err=True)


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Imports that an extra of the distribution installs happen in here.

    Raises:
        UsageError: A package is missing; the message has the line that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in _ROOMS:
            raise
        raise UsageError(f'{error.name} is not installed; run: pip install "scankv[{extra}]"') from error


def _abandon_stdout() -> None:
    """Keeps the interpreter from flushing into the closed pipe, and complaining, when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
