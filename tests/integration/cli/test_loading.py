from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import sync
from scankv.cli import loading
from scankv.cli.loading import Loading
from scankv.formats.blocks import BadRows

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from tests.support.command_line import CommandLine

# The server refuses the second row.
KEYS = [["a"], ["x" * 20_000], ["b", "c"], ["d", "e", "f"]]


@dataclass
class KeyBlock:
    """A block of a file."""

    keys: list[str]

    def __len__(self) -> int:
        return len(self.keys)

    def convert(self, start: int, stop: int) -> pa.RecordBatch:
        return pa.record_batch({"player": self.keys[start:stop]})

    def where(self, row: int) -> str:
        return f"row {row}"

    def line(self, row: int) -> bytes:
        return self.keys[row].encode()


class InterruptAtLine:
    """Raises KeyboardInterrupt before one of the lines that this thread executes in the module of `Loading`."""

    def __init__(self, line: int) -> None:
        self.line = line
        self.lines = 0

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *exception: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        if frame.f_code.co_filename != loading.__file__:
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.line:
                raise KeyboardInterrupt
        return self._trace


def is_loaded(some: Loading, blocks: list[KeyBlock], line: int) -> bool:
    """Whether a loading ends before it comes to the line that interrupts it."""
    with suppress(KeyboardInterrupt), InterruptAtLine(line):
        some.run(blocks, BadRows("rows", skip=True), lambda: None)
        return True
    return False


@pytest.mark.breadth
def test_an_interrupt_at_any_line_of_the_loading_ends_it_with_the_number_of_rows(
    scankv: CommandLine, table: str
) -> None:
    scankv("create", table, "--schema", "player string", "--key", "player", "--buckets", "1")
    line, ended = 0, False
    # In a thread of their own, because an exception of a trace function can stay the current one of its thread.
    with sync.connect(scankv.url) as observer, ThreadPoolExecutor(1) as threads:
        observed = observer.table(table)
        while not ended:
            line += 1
            before = observed.count()
            blocks = [KeyBlock([f"{line} {key}" for key in keys]) for keys in KEYS]
            with sync.connect(scankv.url) as client:
                some = Loading(client, client.table(table))
                ended = threads.submit(is_loaded, some, blocks, line).result()
            assert some.rows <= observed.count() - before <= some.rows + some.unsure, line
    assert line > 50
    assert (some.rows, some.unsure) == (6, 0)
