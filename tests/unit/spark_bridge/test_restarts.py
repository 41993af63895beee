"""Calls are retried while a server is absent, for a limited time; other errors are not."""

from __future__ import annotations

import socket
from functools import partial
from typing import TYPE_CHECKING

import pytest

from aio_client import TableNotFound, Unavailable, sync
from spark_bridge.restarts import retry_through_restart

if TYPE_CHECKING:
    from streaming_server.testing import ServerProcess


class Fails:
    """Raises these errors in turn, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def __call__(self) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


def test_it_asks_again_when_the_server_is_back(shared_server: ServerProcess) -> None:
    ask = Fails(Unavailable("away"), Unavailable("away again"))
    assert retry_through_restart(partial(sync.connect, shared_server.url), ask) == "answer"


def test_it_gives_up_where_nobody_comes_back() -> None:
    ask = Fails(*[Unavailable("away")] * 100)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(Unavailable, match="away"):
            retry_through_restart(partial(sync.connect, f"127.0.0.1:{taken.getsockname()[1]}"), ask, timeout=0.3)
    assert ask.errors


def test_it_gives_up_where_the_server_is_there_and_asking_keeps_failing(shared_server: ServerProcess) -> None:
    with pytest.raises(Unavailable, match="away"):
        retry_through_restart(
            partial(sync.connect, shared_server.url), Fails(*[Unavailable("away")] * 10_000), timeout=0.3
        )


def test_what_a_server_refuses_is_not_asked_again(shared_server: ServerProcess) -> None:
    ask = Fails(TableNotFound("no such table"), Unavailable("away"))
    with pytest.raises(TableNotFound):
        retry_through_restart(partial(sync.connect, shared_server.url), ask)
    assert len(ask.errors) == 1
