"""Work in a process of its own: nothing that is measured shares an interpreter with anything else."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from multiprocessing.connection import Connection

P = ParamSpec("P")
T = TypeVar("T")
Subject = TypeVar("Subject", bound="AbstractContextManager[Any]")

# A forked process would inherit threads and locks of gRPC and RocksDB in whatever state they are.
_SPAWN = multiprocessing.get_context("spawn")


class Worker(Generic[Subject]):
    """A process that enters one object, runs its methods when told, and leaves it at the end.

    It starts at once and gets ready while others start, too; the first `call` waits for it.

    Args:
        make: Makes the object in the process: a picklable class that is a context manager.
        arguments: What it is made from.
    """

    def __init__(self, make: Callable[P, Subject], *arguments: P.args, **keywords: P.kwargs) -> None:
        self._name = getattr(make, "__name__", str(make))
        self._connection, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(theirs, make, arguments, keywords), daemon=True)
        self._process.start()
        self._is_ready = False
        theirs.close()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process.pid is not None
        return self._process.pid

    def call(self, method: Callable[..., T], *arguments: object) -> T:
        """Runs `method`, given as `Class.method`, on the object and returns what it gives."""
        self.begin(method, *arguments)
        return self.finish()  # type: ignore[no-any-return]

    def begin(self, method: Callable[..., Any], *arguments: object) -> None:
        """Runs a method on the object, beside what goes on here; `finish` before the next."""
        self.wait_ready()
        self._connection.send((method.__name__, arguments))

    def finish(self) -> Any:  # noqa: ANN401  # whatever the method gave
        """Waits for the end of what was begun; what it gave."""
        return self._answer()

    def wait_ready(self) -> None:
        """Returns once the object is entered."""
        if not self._is_ready:
            self._answer()
            self._is_ready = True

    def _answer(self) -> Any:  # noqa: ANN401  # whatever the method gave
        try:
            return self._connection.recv()
        except EOFError:
            raise RuntimeError(f"the process of {self._name} failed; its traceback stands above") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):
            self._connection.send(None)
        self._process.join()
        self._process.close()
        self._connection.close()


def _serve(
    connection: Connection,
    make: Callable[..., AbstractContextManager[Any]],
    arguments: tuple[object, ...],
    keywords: dict[str, object],
) -> None:
    with make(*arguments, **keywords) as subject:
        connection.send("ready")
        while (message := connection.recv()) is not None:
            name, given = message
            connection.send(getattr(subject, name)(*given))


def run_alone(function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """Runs a function in a new process and returns what it gives."""
    with ProcessPoolExecutor(max_workers=1, mp_context=_SPAWN) as pool:
        return pool.submit(function, *arguments, **keywords).result()
