"""Fixtures of the unit tests."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", autouse=True)
def unhurried_steps() -> Iterator[None]:
    """Ends reads where the test says, and not after some milliseconds, which pass sooner on a busy machine.

    Tests of steps that end in time set their own. The tests of the client also run where the server is not installed.
    """
    if find_spec("rocksdict") is None:
        yield
        return
    from streaming_server.scan import indexed_rows
    from streaming_server.scan.queries import entry_merge
    from streaming_server.scan.rows import index_lookup, ordered_source
    from streaming_server.storage.cursors import entry_cursor, range_reader

    with pytest.MonkeyPatch.context() as patched:
        for module in (entry_cursor, entry_merge, indexed_rows, index_lookup, ordered_source, range_reader):
            patched.setattr(module, "STEP_SECONDS", 60.0)
        yield
