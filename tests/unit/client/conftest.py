"""Fixtures of the client's unit tests."""

from __future__ import annotations

import gc
import socket
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def unused_port() -> Iterator[int]:
    """Returns a loopback port without a listener, which no other program gets; a gRPC server may share it."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


@pytest.fixture
def no_cycles() -> Iterator[None]:
    """Disables the garbage collector: objects of the test must be freed by reference counting."""
    gc.disable()
    yield
    gc.enable()
