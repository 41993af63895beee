"""How does a page come although one part of it is slow or fails? Each part has a time limit, and says what is wrong."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from scankv.model.errors import DeadlineExceeded, ScanKvError, Unauthenticated, UnknownCall

if TYPE_CHECKING:
    from collections.abc import Awaitable

SECTION_SECONDS: Final = 2.0
"""How long a page waits for a part of it."""

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Section(Generic[_Value]):
    """A part of a page. Immutable.

    Attributes:
        value: What it shows. None: it could not be read.
        problem: Why it could not be read. Empty: it could.
        timed_out: Whether it took too long.
    """

    value: _Value | None = None
    problem: str = ""
    timed_out: bool = False


async def read_section(call: Awaitable[_Value], what: str, seconds: float | None = SECTION_SECONDS) -> Section[_Value]:
    """Returns a part of a page, or why it could not be read.

    Args:
        call: Reads it.
        what: What it is, as a sentence begins.
        seconds: How long it may take. None: as long as the client waits for an answer.

    Raises:
        Unauthenticated: The session has ended, so that the page shows the login.
        TimeoutError: `call` has raised it.
    """
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return Section(await call)
    except TimeoutError:
        if not limit.expired():
            raise
        return Section(problem=f"{what} did not arrive within {seconds:g} seconds.", timed_out=True)
    except Unauthenticated:
        raise
    except UnknownCall:
        wanted = f"{what[:1].lower()}{what[1:]}"
        return Section(problem=f"The server is older than this console: upgrade it to see {wanted}.")
    except ScanKvError as error:
        return Section(problem=_sentence(error.message), timed_out=isinstance(error, DeadlineExceeded))


def _sentence(message: str) -> str:
    """Returns a message as a sentence, which others may follow."""
    return message if message.endswith((".", "?", "!")) else f"{message}."
