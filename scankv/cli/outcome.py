"""How a command ends: its exit code, and its message on standard error if it failed.

Exit codes: 0 done, or the reader of the output closed its pipe; 1 failed; 2 wrong usage; 130 interrupted;
143 terminated. `serve` and `load` add their own. Only a `ScanKvError` becomes a message: any other exception is a bug,
and shows its traceback.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer
from typer.core import TyperGroup

from scankv.formats.printable import printable
from scankv.model.errors import RESUME_HINT, ScanKvError, UsageError
from scankv.model.installing import command_to_install

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

T = TypeVar("T")

FAILED: Final = 1
INTERRUPTED: Final = 130
TERMINATED: Final = 143

_OWN_PACKAGES: Final = ("aio_client", "http_gateway", "scankv", "streaming_server")


class Commands(TyperGroup):
    """The group of all commands. It maps the exceptions of every command to messages and exit codes."""

    def invoke(self, ctx: Any) -> object:  # noqa: ANN401  # typer has moved the class of its contexts
        """Runs the command that the user named."""
        try:
            result: object = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except ScanKvError as error:
            complain(error.message.replace(RESUME_HINT, ""))
            raise typer.Exit(FAILED) from error
        except BrokenPipeError:
            _abandon_stdout()
            raise typer.Exit from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end as `asyncio.run`, and cancels it on SIGTERM.

    As for Ctrl-C, which `asyncio.run` handles so, the signal arrives in the event loop. An exception that a signal
    handler raises is lost if the signal arrives in a callback that C code makes, as gRPC does.
    """

    async def run_until_terminated() -> T:
        task, is_terminated = asyncio.current_task(), False

        def terminate() -> None:
            nonlocal is_terminated
            is_terminated = True
            assert task is not None
            task.cancel()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
        try:
            return await work
        except asyncio.CancelledError:
            if is_terminated:
                sys.exit(TERMINATED)
            raise

    return asyncio.run(run_until_terminated())


def complain(message: str) -> None:
    """Prints an error on standard error, with the line breaks of the message, which point to a place in a text."""
    typer.echo(f"scankv: error: {printable(message, lines=True)}", err=True)


@contextmanager
def require_extra(extra: str) -> Iterator[None]:
    """Wraps imports that need an extra of the distribution.

    Raises:
        UsageError: A package of the extra is not installed. The message has the command that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in _OWN_PACKAGES:
            raise
        raise UsageError(f"{error.name} is not installed; {command_to_install(extra)}") from error


def _abandon_stdout() -> None:
    """Redirects standard output to nowhere, so that the interpreter's last flush does not fail on the closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
