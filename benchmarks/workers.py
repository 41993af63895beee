"""Runs work in separate processes, so that nothing that is measured shares an interpreter with other work."""

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

# Spawn, since a forked process would inherit the locks of gRPC and RocksDB in an undefined state.
_SPAWN = multiprocessing.get_context("spawn")


class Worker(Generic[Subject]):
    """A process that enters a context manager, runs methods of it on request, and exits it at the end.

    The process starts at once, so several workers start concurrently. The first `call` waits until it is ready.

    Args:
        make: Creates the object in the process: a picklable class that is a context manager.
        arguments: The arguments for `make`.
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
        """The id of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def call(self, method: Callable[..., T], *arguments: object) -> T:
        """Runs a method of the object, passed as `Class.method`, and returns its result."""
        self.begin(method, *arguments)
        return self.finish()  # type: ignore[no-any-return]

    def begin(self, method: Callable[..., Any], *arguments: object) -> None:
        """Starts a method of the object without waiting for it. Call `finish` before the next call."""
        self.wait_ready()
        self._connection.send((method.__name__, arguments))

    @property
    def is_busy(self) -> bool:
        """Whether the method that `begin` started still runs."""
        return not self._connection.poll()

    def finish(self) -> Any:  # noqa: ANN401  # the result of any method
        """Waits for the method that `begin` started, and returns its result."""
        return self._receive()

    def wait_ready(self) -> None:
        """Waits until the process has entered the object."""
        if not self._is_ready:
            self._receive()
            self._is_ready = True

    def _receive(self) -> Any:  # noqa: ANN401  # the result of any method
        try:
            return self._connection.recv()
        except EOFError:
            raise RuntimeError(f"the process of {self._name} failed; see its traceback above") from None

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
    """Runs a function in a new process and returns its result."""
    with ProcessPoolExecutor(max_workers=1, mp_context=_SPAWN) as pool:
        return pool.submit(function, *arguments, **keywords).result()
