"""Converts blocks of a file's rows to rows of a table, and finds each row that cannot be converted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from scankv.formats.files import BadFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

_MOST_REPORTED: Final = 20


class BadRowError(Exception):
    """At least one of some rows does not fit the table. For a single row, the message is the reason."""


class Block(Protocol):
    """Consecutive rows of a file, not yet converted."""

    def __len__(self) -> int:
        """Returns the number of rows."""

    def convert(self, start: int, stop: int) -> pa.RecordBatch:
        """Returns the rows `start` up to, but not including, `stop`, converted to the block's schema.

        Raises:
            BadRowError: At least one of these rows does not fit the schema.
        """

    def where(self, row: int) -> str:
        """Returns the position of a row in the file, such as `line 17`."""

    def line(self, row: int) -> bytes:
        """Returns a row as a line of text, as it is in a text file, so that it can be corrected and loaded again."""


class BadRows:
    """Handles rows that cannot be loaded: either the first one stops the load, or each one is reported and skipped.

    Attributes:
        count: How many rows were skipped.
        header: The line that must precede the lines of the rows for the format; empty: none.
    """

    def __init__(
        self,
        name: str,
        *,
        skip: bool,
        report: Callable[[str], None] = lambda message: None,
        keep: Callable[[bytes, bytes], None] = lambda header, line: None,
    ) -> None:
        self.count: int = 0
        self.header: bytes = b""
        self.skip = skip
        self._name = name
        self._report = report
        self._keep = keep

    def add(self, where: str, reason: str, line: Callable[[], bytes]) -> None:
        """Counts, keeps and reports one bad row.

        Args:
            where: The position of the row in the file.
            reason: Why it cannot be loaded.
            line: Returns the row as a line of text.

        Raises:
            BadFile: Bad rows must not be skipped.
        """
        message = f"{self._name}: {where}: {reason}"
        if not self.skip:
            raise BadFile(message)
        self.count += 1
        self._keep(self.header, line())
        if self.count <= _MOST_REPORTED:
            self._report(message)
        elif self.count == _MOST_REPORTED + 1:
            self._report(f"more than {_MOST_REPORTED} bad rows: the rest are counted but not shown")


@dataclass(frozen=True, slots=True)
class GoodRows:
    """Rows of the table's schema, with their positions in the file.

    Attributes:
        rows: The rows, at least one.
        block: The block that contains the rows.
        start: The number of the first row within the block.
    """

    rows: pa.RecordBatch
    block: Block
    start: int

    def where(self, row: int) -> str:
        """Returns the position of a row in the file."""
        return self.block.where(self.start + row)

    def line(self, row: int) -> bytes:
        """Returns a row as a line of text."""
        return self.block.line(self.start + row)


def good_rows(block: Block, bad: BadRows) -> Iterator[GoodRows]:
    """Yields the rows of a block that can be loaded, in order, and passes the others to `bad`.

    A block without bad rows takes one conversion. Each bad row is found by bisection, which takes a logarithmic number
    of further conversions.
    """
    if len(block):
        yield from _good_rows(block, 0, len(block), bad)


def _good_rows(block: Block, start: int, stop: int, bad: BadRows) -> Iterator[GoodRows]:
    try:
        rows = block.convert(start, stop)
    except BadRowError as error:
        if stop - start == 1:
            bad.add(block.where(start), str(error), lambda: block.line(start))
            return
        middle = (start + stop) // 2
        yield from _good_rows(block, start, middle, bad)
        yield from _good_rows(block, middle, stop, bad)
    else:
        if rows.num_rows:
            yield GoodRows(rows, block, start)
