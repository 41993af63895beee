"""One scan of a random history, read in parts: what it must return, with any number of cuts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import pyarrow as pa

from scankv.model.keys.buckets import bucket_of_one
from scankv.model.keys.key_codec import KeyCodec
from scankv.model.keys.key_range import KeyRange
from tests.support.table_kinds import TableKind

if TYPE_CHECKING:
    from random import Random

    from aio_client import Client, Resume, Scan, ScanStream, Snapshot, Table

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("version", pa.int64()), ("text", pa.string())])
KEYS = 800
BUCKETS = 3
_CODEC = KeyCodec([pa.int64()])
_BUCKET_OF = {key: bucket_of_one(_CODEC.encode_one([key]), BUCKETS) for key in range(KEYS)}

Row: TypeAlias = tuple[int, int | None, str | None]
"""The values of a row in column order."""

View: TypeAlias = dict[int, Row]
"""The rows of a table at one instant, by key."""


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """Returns the rows of a batch."""
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanCase:
    """The arguments of a scan, and its expected rows."""

    buckets: tuple[int, ...] | None
    keys: range
    limit: int | None
    reverse: bool
    chunk_rows: int
    kind: TableKind = TableKind.PLAIN
    read_path: Literal["auto", "rocksdb"] = "auto"

    @classmethod
    def random(cls, random: Random, kind: TableKind) -> ScanCase:
        """Returns a random query; most are for all rows."""
        start, end = sorted(random.choices(range(KEYS), k=2))
        return cls(
            buckets=random.choice([None, None, (1,), (2, 0)]),
            keys=random.choice([range(KEYS), range(KEYS), range(start, end)]),
            limit=random.choice([None, None, None, 0, 20, 400]),
            reverse=random.random() < 0.4,
            chunk_rows=random.choice([5, 20, 60]),
            kind=kind,
        )

    def scan(self, table: Table, snapshot: Snapshot | None, resume: Resume | None) -> Scan:
        """Returns the scan for the query."""
        scan = table.scan(limit=self.limit).with_chunk(rows=self.chunk_rows).read_path(self.read_path)
        scan = scan if self.buckets is None else scan.with_buckets(self.buckets)
        scan = scan.reverse() if self.reverse else scan
        scan = scan if snapshot is None else scan.as_of(snapshot)
        scan = scan if resume is None else scan.resume(resume)
        if len(self.keys) == KEYS:
            return scan
        codec = KeyCodec([pa.int64()] * len(self.kind.key(0)))
        start, end = (codec.encode_one(self.kind.key(key)) for key in (self.keys.start, self.keys.stop))
        return type(scan)(scan._transport, replace(scan.spec, key_range=KeyRange(start, end)))

    def place(self, row: Row) -> tuple[int, int]:
        """Returns a sort key for the order of the scan."""
        return _BUCKET_OF[row[0]], -row[0] if self.reverse else row[0]

    def answer(self, view: View, behind: Row | None) -> list[Row]:
        """Returns the rows of a view after a given row, in the order of the scan, regardless of the limit."""
        wanted = range(BUCKETS) if self.buckets is None else self.buckets
        rows = [row for key, row in view.items() if key in self.keys and _BUCKET_OF[key] in wanted]
        rows = rows if behind is None else [row for row in rows if self.place(row) > self.place(behind)]
        return sorted(rows, key=self.place)


class ResumedScan:
    """A scan that is being read.

    Attributes:
        name: Its name in the log.
        question: The query.
        snapshot: The snapshot to read; None for the live table.
        resume: The resume option of the scan.
        complete: Whether it has been read to its end.
    """

    def __init__(
        self, name: str, question: ScanCase, snapshot: Snapshot | None, resume: Resume | None, pinned: View | None
    ) -> None:
        self.name = name
        self.question = question
        self.snapshot = snapshot
        self.resume = resume
        self.complete = False
        self._pinned = pinned
        self._rows: list[Row] = []
        self._parts: list[tuple[int, View]] = []
        self._stream: ScanStream | None = None
        self._began_at_row = 0
        self._known = 0
        self._log_offsets: dict[int, int] | None = None
        self._offsets_of_rows: dict[int, int] | None = None

    @property
    def rows(self) -> int:
        """The number of rows that were returned."""
        return len(self._rows)

    @property
    def resumptions(self) -> int:
        """How often the scan resumed after a cut or in another client."""
        return max(0, len(self._parts) - 1)

    @property
    def resume_token(self) -> bytes | None:
        """The token with which the scan can be resumed."""
        return None if self._stream is None else self._stream.resume_token

    async def open(self, client: Client, table: Table, now: View) -> None:
        """Starts the scan, or resumes it, in any client.

        Args:
            client: The client that reads.
            table: The table to read.
            now: The current state of the table, which must not change before this returns.

        Raises:
            ScanKvError: The scan did not start.
        """
        scan = self.question.scan(table, self.snapshot, self.resume)
        token = self.resume_token
        scan = scan if token is None else scan.resume_from(token)
        if token is None:
            assert not self._rows, "rows were returned without a token"
            self._log_offsets = None
        stream = client.scan(scan.spec).stream()
        await stream.__aenter__()
        self._stream, self._began_at_row, self._known = stream, len(self._rows), 0
        assert (self._log_offsets is not None) == bool(stream.resumptions), "a resumed scan must say so"
        assert all(resumption.cause is None for resumption in stream.resumptions)
        if token is None:
            self._parts = [(0, now if self._pinned is None else self._pinned)]
            self._log_offsets = stream.log_offsets
        self._note_resumptions(now)

    async def read(self, now: View) -> bool:
        """Reads the next rows. Checks all rows and returns False at the end.

        Raises:
            ScanKvError: The scan was cut. The rows so far are right.
        """
        assert self._stream is not None
        batch = await anext(self._stream, None)
        self._note_resumptions(now)
        if batch is None:
            self.complete = True
            self.check()
            return False
        assert 0 < batch.num_rows <= self.question.chunk_rows
        self._rows += rows_of(batch)
        self._offsets_of_rows = self._log_offsets
        return True

    async def close(self) -> None:
        """Closes the scan before its end."""
        if self._stream is not None:
            await self._stream.aclose()

    def check(self) -> None:
        """Checks that each part has the rows of its view after the previous part, up to the next cut."""
        if not self._parts:
            return
        ends = [start for start, _ in self._parts[1:]] + [len(self._rows)]
        for number, ((start, view), end) in enumerate(zip(self._parts, ends, strict=True)):
            expected = self.question.answer(view, self._rows[start - 1] if start else None)
            limit = self.question.limit
            left = len(expected) if limit is None else min(len(expected), limit - start)
            last = number == len(self._parts) - 1
            wanted = expected[: left if last and self.complete else end - start]
            assert self._rows[start:end] == wanted, (
                f"part {number + 1} of {len(self._parts)} of scan {self.name} has rows {start} to {end}, "
                f"expected {len(wanted)}: {_first_difference(self._rows[start:end], wanted)}"
            )
        assert len({row[0] for row in self._rows}) == len(self._rows), "a key is there twice"

    def _note_resumptions(self, now: View) -> None:
        """Records resumptions. A scan resumes only during a read, and the table does not change in that time."""
        assert self._stream is not None
        for resumption in self._stream.resumptions[self._known :]:
            assert self._began_at_row + resumption.rows == len(self._rows)
            assert resumption.from_log_offsets == (self._offsets_of_rows or self._log_offsets)
            self._log_offsets = resumption.to_log_offsets
            self._parts.append((len(self._rows), now if self._pinned is None else self._pinned))
        self._known = len(self._stream.resumptions)
        assert self._stream.log_offsets == self._log_offsets


def _first_difference(found: list[Row], wanted: list[Row]) -> str:
    for number, (row, other) in enumerate(zip(found, wanted, strict=False)):
        if row != other:
            return f"row {number} is {row[:2]}, not {other[:2]}"
    return f"there are {len(found)}"
