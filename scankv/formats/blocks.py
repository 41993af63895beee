"""Runs of rows as a file has them, turned into rows of a table; the rows that cannot be are found one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from scankv.formats.files import BadFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

_MOST_REPORTED: Final = 20


class BadRowError(Exception):
    """Rows cannot be turned into rows of the table; with a single row the message is its reason."""


class Block(Protocol):
    """A run of rows as they stand in the file."""

    def __len__(self) -> int:
        """How many rows."""

    def convert(self, start: int, stop: int) -> pa.RecordBatch:
        """The rows `start` up to `stop`, of the block's schema.

        Raises:
            BadRowError: At least one of them is not a row of that schema.
        """

    def where(self, row: int) -> str:
        """Where a row stands in the file, such as `line 17`."""


class BadRows:
    """What happens with rows that cannot be loaded: the first ends the loading, or each is reported and counted.

    Attributes:
        count: How many rows were passed over.
    """

    def __init__(self, name: str, *, skip: bool, report: Callable[[str], None] = lambda message: None) -> None:
        self.count: int = 0
        self.skip = skip
        self._name = name
        self._report = report

    def add(self, where: str, reason: str) -> None:
        """Takes note of one bad row.

        Raises:
            BadFile: Bad rows are not to be passed over.
        """
        message = f"{self._name}: {where}: {reason}"
        if not self.skip:
            raise BadFile(message)
        self.count += 1
        if self.count <= _MOST_REPORTED:
            self._report(message)
        elif self.count == _MOST_REPORTED + 1:
            self._report("further bad rows are only counted")


@dataclass(frozen=True, slots=True)
class GoodRows:
    """Rows of the table's schema, which remember where they stood.

    Attributes:
        rows: The rows, at least one.
        block: The block they come from.
        start: Which of its rows the first one is.
    """

    rows: pa.RecordBatch
    block: Block
    start: int

    def where(self, row: int) -> str:
        """Where a row stands in the file."""
        return self.block.where(self.start + row)


def good_rows(block: Block, bad: BadRows) -> Iterator[GoodRows]:
    """The rows of a block that can be loaded, in order; the others go to `bad`.

    A block without bad rows costs one conversion, each bad row a logarithmic number of further ones.
    """
    if len(block):
        yield from _good_rows(block, 0, len(block), bad)


def _good_rows(block: Block, start: int, stop: int, bad: BadRows) -> Iterator[GoodRows]:
    try:
        rows = block.convert(start, stop)
    except BadRowError as error:
        if stop - start == 1:
            bad.add(block.where(start), str(error))
            return
        middle = (start + stop) // 2
        yield from _good_rows(block, start, middle, bad)
        yield from _good_rows(block, middle, stop, bad)
    else:
        if rows.num_rows:
            yield GoodRows(rows, block, start)
