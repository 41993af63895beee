"""Objects that `await` or `async with` opens. Their use without either raises an error that says what to write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic, NoReturn, Protocol, Self, TypeVar

from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType


class NotAwaitedError(UsageError, AttributeError):
    """An object was used before `await` or `async with` opened it.

    Also an AttributeError, so that `hasattr` works.
    """


class _Opened(Protocol):
    """An object that `async with` ends."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


T = TypeVar("T", bound=_Opened)


class AwaitableOpener(ABC, Generic[T]):
    """The result of a call that is opened by `await` or `async with`: each opens an object of its own.

    Using it without either raises a UsageError that says what to write.

    Attributes:
        call: The call that made it, for messages.
        name: The name of its result in messages.
        result: The class of its result.
    """

    call: ClassVar[str]
    name: ClassVar[str]
    result: ClassVar[type]

    _entered: T | None = None

    @abstractmethod
    async def _open(self) -> T:
        """Opens an object, which the caller ends."""

    def __await__(self) -> Generator[None, None, T]:
        return self._open().__await__()

    async def __aenter__(self) -> T:
        if self._entered is not None:
            raise UsageError(f"this {self.call} is in use: call it again for another one")
        self._entered = await self._open()
        return await self._entered.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._entered is not None
        entered, self._entered = self._entered, None
        await entered.__aexit__(kind, error, traceback)

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
