"""What is opened by `await` or `async with`, and says so to whoever forgets it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NoReturn

from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Generator


class NotAwaitedError(UsageError, AttributeError):
    """An attribute of an object was asked for that `await` has yet to give.

    It is an AttributeError, too, so that `hasattr` and the like work as ever.
    """


class Opener(ABC):
    """What a call returns that is opened by `await` or `async with`.

    Using it without either is a UsageError that says what to write.

    Attributes:
        call: How it was made, for messages.
        name: What its result is called in them.
        result: The class of what it gives.
    """

    call: ClassVar[str]
    name: ClassVar[str]
    result: ClassVar[type]

    @abstractmethod
    def __await__(self) -> Generator[None, None, object]:
        """Opens it."""

    if not TYPE_CHECKING:  # so that type checkers still miss the attribute

        def __getattr__(self, name: str) -> NoReturn:
            if not name.startswith("_") and hasattr(self.result, name):
                raise NotAwaitedError(f"{self.forgotten} before .{name}")
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __enter__(self) -> NoReturn:
        raise UsageError(f"{self.forgotten}; scankv.sync is for code that blocks")

    def __exit__(self, *_: object) -> NoReturn:
        # Without it, `with` would not come to `__enter__`.
        raise UsageError(self.forgotten)

    @property
    def forgotten(self) -> str:
        """What to write instead, for messages."""
        ways = f"`{self.name} = await {self.call}`, or `async with {self.call} as {self.name}`"
        return f"{self.call} is not open yet: write {ways}"
