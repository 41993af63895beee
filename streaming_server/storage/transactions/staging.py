"""What transactions have staged: a directory for each, with a file of requests for each part.

transactions/<token>/transaction.json   what it is
transactions/<token>/<number>.part      the requests of one part, in their order, each a record with a checksum
transactions/<token>/<number>-<n>.keys  the pieces of request n of that part, where the server has made it of many

Nothing of it is promised until the commit, which makes the parts durable before it is decided. Large ones are made so
piece by piece as they grow, so that the commit need not wait for all of it.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from scankv.model.errors import DataLoss
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.files.checked_json import read_checked_json, sync_directory, write_checked_json
from streaming_server.storage.files.disk_space import translate_disk_errors
from streaming_server.storage.files.file_limit import is_out_of_files, too_many_files
from streaming_server.storage.files.frames import encode_frame, read_frames, write_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

UPSERT: Final = "upsert"
DELETE: Final = "delete"
READ: Final = "read"
"""What a request does; one that reads has the commit depend on its keys."""

_FILE: Final = "transaction.json"
_SYNC_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRequest:
    """One request as it is staged, but for its rows or keys.

    Attributes:
        part: The id of its part.
        table: The table, as `database.table`.
        incarnation: That of the table.
        action: UPSERT, DELETE or READ.
        rows: How many rows or keys it has.
        buckets: Those that they are in, and how many pieces of it write there, mostly 1; with READ, the offsets that it
            is as of.
        schema_id: The version of the table's schema that the rows were made for.
        indexes: The indexes that the table had when the rows were checked.
        columns: The columns that it names. Empty: all.
        overwrite: Whether the rows replace what stands.
        merges: Whether they are merged with what stands, which may be refused.
        column_locks: The ids of the column locks that the writer has.
        pieces: How many requests, in a file of their own, it stands for; None: it has its rows or keys itself.
        piece_bytes: Bytes of that file.
    """

    part: str
    table: str
    incarnation: str
    action: str
    rows: int
    buckets: Mapping[int, int]
    schema_id: int = 0
    indexes: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()
    overwrite: bool = False
    merges: bool = False
    column_locks: tuple[str, ...] = ()
    pieces: int | None = None
    piece_bytes: int = 0

    @classmethod
    def from_head(cls, head: dict[str, Any]) -> StagedRequest:
        """What `asdict` gave, back from JSON."""
        tuples = {name: tuple(value) for name, value in head.items() if isinstance(value, list)}
        buckets = {int(bucket): offset for bucket, offset in head["buckets"].items()}
        return cls(**{**head, **tuples, "buckets": buckets})


@dataclass(slots=True, eq=False)
class TableFootprint:
    """What requests do to one table, all of them together.

    Attributes:
        incarnation: That of the table.
        buckets: Where they write, and how many of them in each.
        indexes: The indexes that the table had when they were checked: all that it ever had then.
        access: The columns that they write (empty: all), with the ids of the column locks that their writers have.
        read_from: Where keys were read that the commit depends on, by bucket: the oldest offset that one is as of.
        merges: Whether rows are merged with what stands.
    """

    incarnation: str
    buckets: Counter[int] = field(default_factory=Counter)
    indexes: set[tuple[int, ...]] = field(default_factory=set)
    access: set[tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=set)
    read_from: dict[int, int] = field(default_factory=dict)
    merges: bool = False

    def add(self, request: StagedRequest) -> None:
        """Adds one request."""
        if request.action == READ:
            self.read_from = older_offsets(self.read_from, request.buckets)
            return
        self.buckets.update(request.buckets)
        self.indexes.add(request.indexes)
        self.access.add((request.columns, request.column_locks))
        self.merges |= request.merges

    def merge(self, other: TableFootprint) -> None:
        """Adds what others do."""
        self.buckets += other.buckets
        self.indexes |= other.indexes
        self.access |= other.access
        self.read_from = older_offsets(self.read_from, other.read_from)
        self.merges |= other.merges


def older_offsets(offsets: Mapping[int, int], others: Mapping[int, int]) -> dict[int, int]:
    """Of two offsets of a bucket the older one."""
    both = {**offsets, **others}
    return {bucket: min(offsets.get(bucket, at), at, key=count_of) for bucket, at in both.items()}


@dataclass(slots=True, eq=False)
class PartFile:
    """The requests of one part.

    Attributes:
        path: Their file.
        part: The id of the part.
        requests: How many they are.
        rows: How many rows and keys they write.
        size: Bytes of the file that they take.
        piece_bytes: Bytes of the files beside it.
        tables: What they do to each table.
    """

    path: Path
    part: str
    requests: int = 0
    rows: int = 0
    size: int = 0
    piece_bytes: int = 0
    tables: dict[str, TableFootprint] = field(default_factory=dict)
    _unsynced: int = 0

    @property
    def number(self) -> int:
        """Its number, which its file has as its name."""
        return int(self.path.stem)

    def append(self, request: StagedRequest, payload: bytes) -> None:
        """Adds a request. Blocks. When it fails, the part is as before."""
        data = encode_frame(asdict(request), payload)
        sync = self._unsynced + len(data) >= _SYNC_BYTES
        write_at(self.path, data, self.size, sync=sync)
        self._count_request(request, self.size + len(data))
        self._unsynced = 0 if sync else self._unsynced + len(data)

    def _count_request(self, request: StagedRequest, end: int) -> None:
        self.size = end
        self.requests += 1
        self.piece_bytes += request.piece_bytes
        self.rows += 0 if request.action == READ else request.rows
        self.tables.setdefault(request.table, TableFootprint(request.incarnation)).add(request)

    def sync(self) -> None:
        """Makes the requests durable, but not the name of the file. Blocks."""
        if self._unsynced:
            write_at(self.path, b"", 0, sync=True)
            self._unsynced = 0

    @classmethod
    def load(cls, path: Path) -> PartFile | None:
        """The part in a file, up to where a crash has torn it; None where nothing is left of it. Blocks."""
        part: PartFile | None = None
        for head, _, end in read_frames(path):
            request = StagedRequest.from_head(head)
            part = part or cls(path, request.part)
            part._count_request(request, end)
            part._unsynced = end
        return part


class PieceFile:
    """The pieces of a request that the server makes itself, of more keys than one request has. Its methods block.

    Rule: a part has all of a request or nothing. The pieces are durable, by name too, before their request is appended;
    until then they are nothing, and those of a try that a crash or an error has ended are written over.

    Args:
        part: The part.
        number: Which request of it they are.
    """

    def __init__(self, part: PartFile, number: int) -> None:
        self._path = _pieces_of(part.path, number)
        self._count = 0
        self._rows = 0
        self._size = 0
        self._merges = False
        self._buckets: Counter[int] = Counter()
        self._unsynced = 0

    @property
    def size(self) -> int:
        """Bytes of them so far."""
        return self._size

    def append(self, request: StagedRequest, payload: bytes) -> None:
        """Adds a piece, a request itself."""
        data = encode_frame(asdict(request), payload)
        sync = self._unsynced + len(data) >= _SYNC_BYTES
        write_at(self._path, data, self._size, sync=sync)
        self._unsynced = 0 if sync else self._unsynced + len(data)
        self._size += len(data)
        self._count += 1
        self._rows += request.rows
        self._merges |= request.merges
        self._buckets.update(request.buckets)

    def finish(self, request: StagedRequest) -> StagedRequest:
        """Makes them durable; gives the request, which has nothing yet, with all that they have together."""
        if self._count:
            write_at(self._path, b"", 0, sync=True)
            sync_directory(self._path.parent)
        return replace(
            request,
            rows=self._rows,
            buckets=dict(self._buckets),
            merges=self._merges,
            pieces=self._count,
            piece_bytes=self._size,
        )

    def discard(self) -> None:
        """Removes them."""
        self._path.unlink(missing_ok=True)


def _pieces_of(path: Path, number: int) -> Path:
    """The file of the pieces of a request of the part in a file."""
    return path.with_name(f"{path.stem}-{number}.keys")


def load_parts(files: Iterable[tuple[Path, int]]) -> list[PartFile]:
    """The parts in some files, of each so many requests, which are read in full. Blocks. Memory: one request.

    Raises:
        DataLoss: They are not all there.
    """
    parts = []
    for path, requests in files:
        part = PartFile(path, "")
        for request, _ in read_staged_requests(path, requests):
            part._count_request(request, 0)
        parts.append(part)
    return parts


def read_staged_requests(path: Path, requests: int) -> Iterator[tuple[StagedRequest, bytes]]:
    """So many requests of a part, with their rows or keys. Blocks. Memory: one request.

    Of one that has pieces, these are given in its place.

    Raises:
        DataLoss: They are not all there.
    """
    found = 0
    try:
        for head, payload, _ in read_frames(path):
            if found == requests:
                return
            request = StagedRequest.from_head(head)
            if request.pieces is None:
                yield request, payload
            else:
                yield from read_staged_requests(_pieces_of(path, found), request.pieces)
            found += 1
    except OSError as error:
        if is_out_of_files(error):
            raise too_many_files(f"{path} cannot be read") from error
        raise DataLoss(f"the staged requests {path} cannot be read: {error}") from error
    if found < requests:
        raise DataLoss(f"the staged requests {path} are damaged: of {requests}, {found} can be read")


def read_staged_request(path: Path, number: int) -> StagedRequest:
    """One request of a part, without its rows or keys. Blocks. Raises DataLoss when it is not there."""
    for found, (head, _, _) in enumerate(read_frames(path)):
        if found == number:
            return StagedRequest.from_head(head)
    raise DataLoss(f"the staged requests {path} are damaged: number {number} cannot be read")


class StagingDirectory:
    """The directory of one transaction. Its methods block.

    Args:
        root: Where the transactions of a server lie.
        token: The transaction's.
    """

    def __init__(self, root: Path, token: str) -> None:
        self.path = root / token

    def create(self, content: Mapping[str, Any]) -> None:
        """Makes it, with what the transaction is."""
        with translate_disk_errors(self.path.parent):
            self.path.mkdir(exist_ok=True)
        self.write_metadata(content)

    def write_metadata(self, content: Mapping[str, Any]) -> None:
        """Replaces what the transaction is, durably."""
        write_checked_json(self.path / _FILE, dict(content))

    def read_metadata(self) -> dict[str, Any] | None:
        """What the transaction is; None where a crash has left no more than a directory. Raises DataLoss."""
        return read_checked_json(self.path / _FILE) if (self.path / _FILE).exists() else None

    def part_path(self, number: int) -> Path:
        """The file of a part."""
        return self.path / f"{number}.part"

    def load_parts(self) -> list[PartFile]:
        """The parts that there are, in the order in which they were begun, as far as crashes have left them."""
        numbers = sorted(int(file.stem) for file in self.path.glob("*.part"))
        return [part for number in numbers if (part := PartFile.load(self.part_path(number))) is not None]

    def sync(self) -> None:
        """Makes the names in it durable, and its own."""
        sync_directory(self.path)
        sync_directory(self.path.parent)

    def remove(self) -> None:
        """Removes it. What a crash leaves of it is removed with the next start."""
        # First what it is: without that, it is nothing.
        (self.path / _FILE).unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)


def list_tokens(root: Path) -> list[str]:
    """The transactions that have a directory."""
    return sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
