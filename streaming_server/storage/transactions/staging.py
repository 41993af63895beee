"""The staged rows of transactions: a directory for each transaction, with a file of requests for each part.

transactions/<token>/transaction.json   the metadata of the transaction
transactions/<token>/<number>.part      the requests of one part in their order, each a record with a checksum
transactions/<token>/<number>-<n>.keys  the pieces of request n of that part, if the server has built it from pieces

Staged rows need not be durable before the commit, which syncs all parts before the decision. A large part is also
synced from time to time as it grows, so that the commit need not wait for all of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from bisect import bisect_left
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scankv.model.errors import DataLoss, InvalidRequest, Unavailable
from scankv.model.keys.key_range import KeyRange
from scankv.model.names import table_of, tablet_number
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.files.checked_json import find_checked_json, sync_directory, write_checked_json
from streaming_server.storage.files.disk_space import translate_disk_errors
from streaming_server.storage.files.file_limit import is_out_of_files, too_many_files
from streaming_server.storage.files.frames import encode_frame, read_frames, write_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from scankv.model.errors import ScanKvError

UPSERT: Final = "upsert"
DELETE: Final = "delete"
READ: Final = "read"
DELETE_RANGE: Final = "delete_range"
"""What a request does. The commit depends on the keys of a request that reads. Deleting a range leaves a marker in the
changelog, and needs `DELETIONS_FORMAT` of the data directory."""

_FILE: Final = "transaction.json"
_SYNC_BYTES: Final = 8 << 20
_MODULUS: Final = 1 << 64
_RETRY_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRequest:
    """The head of a staged request: everything but its rows or keys.

    Attributes:
        part: The id of the part.
        table: The table, as `database.table`.
        incarnation: The incarnation of the table.
        action: UPSERT, DELETE, READ or DELETE_RANGE.
        rows: The number of rows or keys; of a range, the number of rows when the request was staged.
        buckets: The buckets of the rows or keys. The value is the number of pieces that write to the bucket, usually 1;
            for a READ, the value is the log offset at which the keys were read.
        schema_id: The version of the table's schema that the rows have.
        indexes: The ids of the table's indexes when the rows were validated.
        columns: The columns that the request names. Empty: all.
        overwrite: Whether the rows replace the stored rows.
        merges: Whether the rows are merged with the stored rows, which may fail.
        column_locks: The ids of the column locks of the writer.
        pieces: The number of pieces, in a file of their own. None: the request has its rows or keys itself.
        piece_bytes: Bytes of that file.
        sequence: The number that the client has given the request, if other worker processes may have others of its
            part. None: the number of complete requests before it in the part.
        fragment: Identifies the request of a client to a table with tablets, and after a `.` the attempt, if another
            one does something else. Each of its tablets stages a fragment of it, and the owner of the table stages the
            summary. Empty: the table has no tablets.
        tablets: Of a summary, the tablets that have fragments.
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
    sequence: int | None = None
    fragment: str = ""
    tablets: tuple[str, ...] = ()

    @property
    def is_fragment(self) -> bool:
        """Whether another request, the summary, stands for all fragments of which this is one."""
        return bool(self.fragment) and not self.tablets

    @property
    def has_rows(self) -> bool:
        """Whether the request has rows to write, or keys to delete."""
        return self.action in (UPSERT, DELETE)

    def head(self) -> dict[str, Any]:
        """Returns the stored form."""
        # An earlier version reads what it could have written.
        defaults = {"sequence": None, "fragment": "", "tablets": ()}
        return {name: value for name, value in asdict(self).items() if name not in defaults or value != defaults[name]}

    @classmethod
    def from_head(cls, head: dict[str, Any]) -> StagedRequest:
        """Reads the result of `head`, from JSON."""
        tuples = {name: tuple(value) for name, value in head.items() if isinstance(value, list)}
        buckets = {int(bucket): offset for bucket, offset in head["buckets"].items()}
        return cls(**{**head, **tuples, "buckets": buckets})


@dataclass(slots=True, eq=False)
class TableFootprint:
    """What the requests of a transaction read and write in one table.

    Attributes:
        incarnation: The incarnation of the table.
        buckets: The buckets that the requests write to, and how many requests write to each.
        indexes: All sets of indexes that the table had when the requests were validated.
        access: The columns that the requests write (empty: all), after the schema version in which they are named, and
            before the ids of the column locks of their writers.
        read_from: By bucket, the oldest log offset at which the transaction read keys that its commit depends on.
        merges: Whether rows are merged with the stored rows.
        writes: The number of requests that write.
        ranges: How many of these delete a range.
        rows: The rows and keys that they write.
    """

    incarnation: str
    buckets: Counter[int] = field(default_factory=Counter)
    indexes: set[tuple[int, ...]] = field(default_factory=set)
    access: set[tuple[int, tuple[str, ...], tuple[str, ...]]] = field(default_factory=set)
    read_from: dict[int, int] = field(default_factory=dict)
    merges: bool = False
    writes: int = 0
    ranges: int = 0
    rows: int = 0

    @property
    def is_of_summaries(self) -> bool:
        """Whether all requests are summaries, so that only the tablets of the table are read and written."""
        return not (self.writes or self.read_from)

    def add(self, request: StagedRequest) -> None:
        """Adds one request."""
        if request.action == READ:
            self.read_from = older_offsets(self.read_from, request.buckets)
            return
        if request.tablets:
            # The owner of the table admits what the owners of its tablets write.
            self.access.add((request.schema_id, request.columns, request.column_locks))
            return
        self.buckets.update(request.buckets)
        self.writes += 1
        self.rows += request.rows
        if request.action == DELETE_RANGE:
            self.ranges += 1
        else:
            self.indexes.add(request.indexes)
        self.access.add((request.schema_id, request.columns, request.column_locks))
        self.merges |= request.merges

    def merge(self, other: TableFootprint) -> None:
        """Adds another footprint of the same table."""
        self.buckets += other.buckets
        self.indexes |= other.indexes
        self.access |= other.access
        self.read_from = older_offsets(self.read_from, other.read_from)
        self.merges |= other.merges
        self.writes += other.writes
        self.ranges += other.ranges
        self.rows += other.rows


def older_offsets(offsets: Mapping[int, int], others: Mapping[int, int]) -> dict[int, int]:
    """Returns the older of two offsets, by bucket."""
    both = {**offsets, **others}
    return {bucket: min(offsets.get(bucket, at), at, key=count_of) for bucket, at in both.items()}


class PartSize(NamedTuple):
    """How much of a part one worker process has, or several have together.

    Attributes:
        requests: The number of requests, without fragments.
        balance: The sum of the checksums of all fragments, less the checksums that the summaries name, modulo 2**64. 0:
            every summary has its fragments, and no fragment lacks its summary.
    """

    requests: int
    balance: int = 0

    def plus(self, other: PartSize) -> PartSize:
        """Returns how much these and other worker processes have together."""
        return PartSize(self.requests + other.requests, (self.balance + other.balance) % _MODULUS)


_NOTHING: Final = PartSize(0)


def sum_of_sizes(sizes: Iterable[Mapping[str, PartSize]]) -> dict[str, PartSize]:
    """Returns how much of each part several worker processes have together."""
    total: dict[str, PartSize] = {}
    for each in sizes:
        for part, size in each.items():
            total[part] = total.get(part, _NOTHING).plus(size)
    return total


def _are_same(found: str, fragment: str, *, is_tablet: bool) -> bool:
    """Whether a staged fragment or summary is of a request; for a tablet, also of the same attempt."""
    return found == fragment if is_tablet else found.partition(".")[0] == fragment.partition(".")[0]


def _checksum(sequence: int, tablet: str, fragment: str) -> int:
    text = f"{sequence} {tablet} {fragment}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


@dataclass(slots=True, eq=False)
class PartFile:
    """The file of the staged requests of one part.

    Attributes:
        path: The path of the file.
        part: The id of the part.
        requests: The number of requests, and of fragments.
        staged: The number of requests without fragments, and whether all fragments are there.
        rows: The number of rows and keys that the requests write.
        size: Bytes of the requests in the file.
        piece_bytes: Bytes of the files with pieces of requests.
        tables: The footprint in each table.
        sequences: The numbers that the client has given the requests, ascending.
    """

    path: Path
    part: str
    requests: int = 0
    staged: PartSize = _NOTHING
    rows: int = 0
    size: int = 0
    piece_bytes: int = 0
    tables: dict[str, TableFootprint] = field(default_factory=dict)
    sequences: list[int] = field(default_factory=list)
    _fragments: dict[int, tuple[str, str]] = field(default_factory=dict)
    _unsynced: int = 0

    @property
    def number(self) -> int:
        """The number of the part, which is the name of the file."""
        return int(self.path.stem)

    def append(self, request: StagedRequest, payload: bytes) -> None:
        """Appends a request. Blocks. When it fails, the part is unchanged."""
        data = encode_frame(request.head(), payload)
        sync = self._unsynced + len(data) >= _SYNC_BYTES
        write_at(self.path, data, self.size, sync=sync)
        self._count_request(request, self.size + len(data))
        self._unsynced = 0 if sync else self._unsynced + len(data)

    def _count_request(self, request: StagedRequest, end: int) -> None:
        self.size = end
        sequence = self.staged.requests if request.sequence is None else request.sequence
        if request.fragment:
            self._fragments[self.requests] = request.table, request.fragment
        named = [_checksum(sequence, each, request.fragment) for each in request.tablets]
        own = _checksum(sequence, request.table, request.fragment) if request.is_fragment else 0
        self.staged = self.staged.plus(PartSize(0 if request.is_fragment else 1, own - sum(named)))
        self.sequences.append(sequence)
        self.requests += 1
        self.piece_bytes += request.piece_bytes
        self.rows += 0 if request.action == READ or request.tablets else request.rows
        self.tables.setdefault(request.table, TableFootprint(request.incarnation)).add(request)

    def count_before(self, sequence: int) -> int:
        """Returns how many requests have smaller numbers: the place of the request of this number, if it is there."""
        return bisect_left(self.sequences, sequence)

    def find(self, sequence: int, table: str, fragment: str = "") -> int | None:
        """Returns the place of the request with a number, or of its fragment or summary for a table. None: not staged.

        Raises:
            InvalidRequest: Another request of this number is there.
            Unavailable: There are fragments of another request of this number, which the table has to discard, because
                a tablet has refused it.
        """
        for place in range(self.count_before(sequence), self.requests):
            if self.sequences[place] != sequence:
                break
            found_table, found = self._fragments.get(place, (table, ""))
            if not _are_same(found, fragment, is_tablet=tablet_number(table) is not None):
                raise self._conflict(sequence, table)
            if found_table == table:
                return place
        return None

    def _conflict(self, sequence: int, table: str) -> ScanKvError:
        """Returns the error for a request whose number another one has."""
        numbers = range(self.count_before(sequence), self.requests)
        # The owner of the table, which has the summaries, looks for the request before the tablets do.
        if all(self._is_fragment(each, sequence) and self._is_of(each, table) for each in numbers):
            return Unavailable(
                f"a tablet of table {table_of(table)} still has rows of an earlier request {sequence} of the part, "
                "which another tablet has refused: try again",
                retry_after=_RETRY_SECONDS,
            )
        return InvalidRequest(
            f"another request of the part has the number {sequence}: send each request of a part with a number of its "
            "own, or abort the transaction"
        )

    def _is_of(self, place: int, table: str) -> bool:
        found, _ = self._fragments.get(place, ("", ""))
        return table_of(found) == table_of(table)

    def without_fragments(self, sequence: int) -> PartFile | None:
        """Removes the fragments of the last request of the part, whose summary is not staged, and returns the rest.

        Blocks. None: nothing is left.

        Args:
            sequence: The number of the request.
        """
        first = self.count_before(sequence)
        numbers = range(first, self.requests)
        if not numbers or not all(self._is_fragment(each, sequence) for each in numbers):
            return self
        ends = [0, *(end for _, _, end in read_frames(self.path))]
        os.truncate(self.path, ends[first])
        return PartFile.load(self.path)

    def _is_fragment(self, place: int, sequence: int) -> bool:
        table, _ = self._fragments.get(place, ("", ""))
        return self.sequences[place] == sequence and tablet_number(table) is not None

    def sync(self) -> None:
        """Makes the requests durable, but not the name of the file. Blocks."""
        if self._unsynced:
            write_at(self.path, b"", 0, sync=True)
            self._unsynced = 0

    @classmethod
    def load(cls, path: Path) -> PartFile | None:
        """Reads a part up to the first torn record. None: no request is left. Blocks."""
        part: PartFile | None = None
        for head, _, end in read_frames(path):
            request = StagedRequest.from_head(head)
            part = part or cls(path, request.part)
            part._count_request(request, end)
            part._unsynced = end
        return part


class PieceFile:
    """The pieces of a request that the server builds itself, with more keys than one request has. Its methods block.

    Rule: a part has a complete request or nothing of it. The pieces, and the name of their file, are durable before
    their request is appended to the part. Until then they do not count, and the next attempt overwrites them.

    Args:
        part: The part.
        number: The number of the request within the part.
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
        """Bytes of the pieces so far."""
        return self._size

    def append(self, request: StagedRequest, payload: bytes) -> None:
        """Appends a piece, which is a request itself."""
        data = encode_frame(request.head(), payload)
        sync = self._unsynced + len(data) >= _SYNC_BYTES
        write_at(self._path, data, self._size, sync=sync)
        self._unsynced = 0 if sync else self._unsynced + len(data)
        self._size += len(data)
        self._count += 1
        self._rows += request.rows
        self._merges |= request.merges
        self._buckets.update(request.buckets)

    def finish(self, request: StagedRequest) -> StagedRequest:
        """Makes the pieces durable; returns `request` with their totals."""
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
        """Removes the file."""
        self._path.unlink(missing_ok=True)


def _pieces_of(path: Path, number: int) -> Path:
    """Returns the path of the pieces of a request, from the path of its part."""
    return path.with_name(f"{path.stem}-{number}.keys")


def encode_range(keys: KeyRange) -> bytes:
    """Returns the payload of a request that deletes a range of keys."""
    ends = [None if end is None else end.hex() for end in (keys.start, keys.end)]
    return json.dumps(ends).encode()


def decode_range(payload: bytes) -> KeyRange:
    """Reads the result of `encode_range`."""
    return KeyRange(*(None if end is None else bytes.fromhex(end) for end in json.loads(payload)))


def load_parts(files: Iterable[tuple[Path, int]]) -> list[PartFile]:
    """Reads the given number of requests of some parts. Blocks. Memory: one request.

    Raises:
        DataLoss: Requests are missing or damaged.
    """
    parts = []
    for path, requests in files:
        part = PartFile(path, "")
        for request, _ in read_staged_requests(path, requests):
            part._count_request(request, 0)
        parts.append(part)
    return parts


def read_staged_requests(path: Path, requests: int) -> Iterator[tuple[StagedRequest, bytes]]:
    """Yields the first `requests` requests of a part, with their rows or keys. Blocks. Memory: one request.

    A request with pieces is replaced by its pieces. Summaries are left out.

    Raises:
        DataLoss: Requests are missing or damaged.
    """
    found = 0
    try:
        for head, payload, _ in read_frames(path):
            if found == requests:
                return
            request = StagedRequest.from_head(head)
            if request.tablets:
                pass
            elif request.pieces is None:
                yield request, payload
            else:
                yield from read_staged_requests(_pieces_of(path, found), request.pieces)
            found += 1
    except OSError as error:
        if is_out_of_files(error):
            raise too_many_files(f"{path} cannot be read") from error
        raise DataLoss(f"the staged requests {path} cannot be read: {error}") from error
    if found < requests:
        raise DataLoss(f"the staged requests {path} are damaged: {found:,} of {requests:,} can be read")


def read_staged_request(path: Path, number: int) -> StagedRequest:
    """Reads the head of one request of a part. Blocks. Raises DataLoss when the request is missing."""
    for found, (head, _, _) in enumerate(read_frames(path)):
        if found == number:
            return StagedRequest.from_head(head)
    raise DataLoss(f"the staged requests {path} are damaged: request {number:,} cannot be read")


class StagingDirectory:
    """The directory of one transaction. Its methods block.

    Args:
        root: The directory of the transactions of a server.
        token: The token of the transaction.
    """

    def __init__(self, root: Path, token: str) -> None:
        self.path = root / token

    def create(self, content: Mapping[str, Any]) -> None:
        """Creates the directory with the metadata of the transaction."""
        with translate_disk_errors(self.path.parent):
            self.path.mkdir(exist_ok=True)
        self.write_metadata(content)

    def write_metadata(self, content: Mapping[str, Any]) -> None:
        """Replaces the metadata of the transaction durably."""
        write_checked_json(self.path / _FILE, dict(content))

    def read_metadata(self) -> dict[str, Any] | None:
        """Reads the metadata. None: a crash has left only the directory. Raises DataLoss."""
        return find_checked_json(self.path / _FILE)

    def part_path(self, number: int) -> Path:
        """Returns the path of a part."""
        return self.path / f"{number}.part"

    def load_parts(self) -> list[PartFile]:
        """Reads the parts in the order in which they were begun, each up to the first torn record."""
        numbers = sorted(int(file.stem) for file in self.path.glob("*.part"))
        return [part for number in numbers if (part := PartFile.load(self.part_path(number))) is not None]

    def sync(self) -> None:
        """Makes the names of the files, and of the directory, durable."""
        sync_directory(self.path)
        sync_directory(self.path.parent)

    def remove(self) -> None:
        """Removes the directory. After a crash, the next start removes the rest."""
        # The metadata goes first: a directory without it is no transaction.
        (self.path / _FILE).unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)


def list_tokens(root: Path) -> list[str]:
    """Returns the tokens of the transactions that have a directory."""
    return sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
