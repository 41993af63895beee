"""Objects that `await` or `async with` opens. Their use without either raises an error that says what to write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NoReturn

from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Generator


class NotAwaitedError(UsageError, AttributeError):
    """An object was used before `await` or `async with` opened it.

    Also an AttributeError, so that `hasattr` works.
    """


class AwaitableOpener(ABC):
    """The result of a call that is opened by `await` or `async with`.

    Using it without either raises a UsageError that says what to write.

    Attributes:
        call: The call that made it, for messages.
        name: The name of its result in messages.
        result: The class of its result.
    """

    call: ClassVar[str]
    name: ClassVar[str]
    result: ClassVar[type]

    @abstractmethod
    def __await__(self) -> Generator[None, None, object]:
        """Opens the object."""

    if not TYPE_CHECKING:  # so that type checkers still miss the attribute

        def __getattr__(self, name: str) -> NoReturn:
            if not name.startswith("_") and hasattr(self.result, name):
                raise NotAwaitedError(f"{self.correction} before .{name}")
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __enter__(self) -> NoReturn:
        raise UsageError(f"{self.correction}; scankv.sync is for code that blocks")

    def __exit__(self, *_: object) -> NoReturn:
        # Without this method, `with` would not call `__enter__`.
        raise UsageError(self.correction)

    @property
    def correction(self) -> str:
        """What to write instead, for messages."""
        ways = f"`{self.name} = await {self.call}`, or `async with {self.call} as {self.name}`"
        return f"{self.call} is not open yet: write {ways}"
