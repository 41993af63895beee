"""Fixtures of the tests of the command line."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.support.command_line import CommandLine

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

_numbers = itertools.count()


@pytest.fixture
def scankv(shared_server: ServerProcess) -> CommandLine:
    """The command line, with a server that other tests use as well."""
    return CommandLine(shared_server.url)


@pytest.fixture
def table() -> str:
    """The name of a table that no other test uses."""
    return f"cli.t{next(_numbers)}"


@pytest.fixture
def scores(scankv: CommandLine, table: str) -> str:
    """A small table: ann 31, bob 27, cem null."""
    scankv("create", table, "--schema", "player string, score int64", "--key", "player", "--buckets", "2")
    scankv("load", table, "-", stdin="player,score\nann,31\nbob,27\ncem,\n")
    return table
