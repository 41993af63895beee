"""The contract of `ChangeLog` about its owners: what is durable, replay, epochs, and owners that were replaced."""

from __future__ import annotations

import os
import shutil
import struct
from itertools import count
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import PositionOutOfRange, ScanKvError
from streaming_server.engine.merging.outcome import merge_delete, merge_upsert
from streaming_server.engine.merging.prepared_rows import prepare
from streaming_server.storage.changelog.offsets import count_of
from streaming_server.storage.changelog.records import Changes, RowKind
from streaming_server.storage.rows.table_codec import TableCodec
from tests.support.examples import examples
from tests.support.memory_log import MemoryOwner, MemoryTopic
from tests.support.offline import OfflineBucket
from tests.support.tables import SCORES, define

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from streaming_server.storage.changelog.change_log import ChangeLog

DEFINITION = define(SCORES)
ANY = 1 << 40

Rows = dict[str, int]
"""The scores of players."""


class LogOwner(Protocol):
    """What appends to a log, with the rows of its bucket."""

    @property
    def log(self) -> ChangeLog: ...
    def prepare(self, player: str, score: int | None) -> Callable[[], None]:
        """Returns a function that writes a row; that deletes it if `score` is None, and the player has a row."""

    def sync(self) -> None: ...
    def rows(self) -> Rows: ...
    def close(self) -> None:
        """Closes the bucket cleanly."""


class LogPlace(Protocol):
    """Where the owners of one log follow one another."""

    def open(self) -> LogOwner: ...
    def take_over(self, before: LogOwner) -> LogOwner:
        """Returns an owner that replaces another one, which does not know it yet."""

    def lose_power(self, owner: LogOwner, draw: st.DataObject) -> LogOwner:
        """Returns an owner that begins with what a power failure leaves."""

    def close(self) -> None:
        """Closes the last owner."""


class MemoryRows(MemoryOwner):
    """A `MemoryOwner` with rows, which it restores by replay."""

    def __init__(self, topic: MemoryTopic) -> None:
        super().__init__(topic)
        self._rows = replayed(self.log, 0, {})

    def prepare(self, player: str, score: int | None) -> Callable[[], None]:
        before, changes = self._rows.get(player), list[tuple[RowKind, int]]()
        if score is None:
            assert before is not None
            changes = [(RowKind.DELETE, before)]
        elif before is None:
            changes = [(RowKind.INSERT, score)]
        elif before != score:
            changes = [(RowKind.UPDATE_BEFORE, before), (RowKind.UPDATE_AFTER, score)]

        def write() -> None:
            rows = pa.RecordBatch.from_pylist([{"player": player, "score": s} for _, s in changes], schema=SCORES)
            if changes:
                self.append(Changes(np.array([kind for kind, _ in changes], np.uint8), rows), 1, 0)
                self._rows.pop(player, None)
                self._rows |= {} if score is None else {player: score}

        return write

    def sync(self) -> None:
        self.log.sync(self.state.log_offset)

    def rows(self) -> Rows:
        return dict(self._rows)

    def close(self) -> None:
        self.sync()
        self.log.close()


class MemoryPlace:
    def __init__(self) -> None:
        self._topic = MemoryTopic()

    def open(self) -> LogOwner:
        return MemoryRows(self._topic)

    def take_over(self, before: LogOwner) -> LogOwner:
        return self.open()

    def lose_power(self, owner: LogOwner, draw: st.DataObject) -> LogOwner:
        return self.open()

    def close(self) -> None:
        """Does nothing: nothing is open."""


class BucketRows:
    """A bucket.

    Attributes:
        bucket: The bucket.
        path: Its directory.
        sizes: The sizes of its write-ahead logs after the last sync, and after each write since then.
    """

    def __init__(self, path: Path) -> None:
        self._offline = OfflineBucket(path, DEFINITION)
        self.bucket = self._offline.bucket
        self.path = path
        self.sizes = [self._log_sizes()]

    @property
    def log(self) -> ChangeLog:
        return self.bucket.log

    def prepare(self, player: str, score: int | None) -> Callable[[], None]:
        row = pa.RecordBatch.from_pylist([{"player": player, "score": score}], schema=SCORES)
        codec = TableCodec(self._offline.codec, self._offline.keys, {}, None)
        (part,) = prepare(row.select(["player"]) if score is None else row, codec, keys_only=score is None)
        old = self.bucket.get(part.keys.to_pylist())
        change = merge_delete(old, part, []) if score is None else merge_upsert(old, part, row_deduplicate=True)

        def write() -> None:
            syncs = self._syncs
            self.bucket.apply(change)
            if self._syncs > syncs:
                # It has synced its first record.
                self.sizes = [{name: _end_of_record(self.path / name, size) for name, size in self.sizes[-1].items()}]
            self.sizes.append(self._log_sizes())

        return write

    @property
    def _syncs(self) -> int:
        return sum(self._offline.resources.sync_seconds.read().counts)

    def sync(self) -> None:
        self._offline.sync()
        self.sizes = [self._log_sizes()]

    def _log_sizes(self) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in self.path.glob("*.log")}

    def rows(self) -> Rows:
        return {row["player"]: row["score"] for row in self._offline.rows().to_pylist()}

    def close(self) -> None:
        self.bucket.close()


def _end_of_record(path: Path, start: int) -> int:
    """Returns the end of a complete record in a write-ahead log of RocksDB."""
    with path.open("rb") as log:
        log.seek(start)
        # checksum, length, type
        _, length, kind = struct.unpack("<IHB", log.read(7))
    assert kind == 1
    return start + 7 + int(length)


class BucketPlace:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = count()
        self._path = directory / f"{next(self._numbers):04}"
        self._last: BucketRows | None = None

    def open(self) -> LogOwner:
        self._last = BucketRows(self._path)
        return self._last

    def take_over(self, before: LogOwner) -> LogOwner:
        assert isinstance(before, BucketRows)
        with pytest.raises(ScanKvError):
            BucketRows(self._path)  # RocksDB's lock
        before.bucket.abandon()
        return self.open()

    def lose_power(self, owner: LogOwner, draw: st.DataObject) -> LogOwner:
        """Copies the files, but not all writes since the last sync. Of one of them there may be a part."""
        assert isinstance(owner, BucketRows)
        self._path = self._directory / f"{next(self._numbers):04}"
        shutil.copytree(owner.path, self._path)
        shutil.copy(owner.path.with_suffix(".durable"), self._path.with_suffix(".durable"))
        last = draw.draw(st.integers(0, len(owner.sizes) - 1))
        torn = draw.draw(st.sampled_from([0, 20])) if last < len(owner.sizes) - 1 else 0
        for name, size in owner.sizes[last].items():
            os.truncate(self._path / name, size + torn)
        owner.bucket.abandon()
        return self.open()

    def close(self) -> None:
        if self._last is not None:
            self._last.close()


@pytest.fixture(scope="module", params=["rocksdb", "memory"])
def new(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], LogPlace]]:
    """Returns a function that returns a place without a log."""
    places: list[LogPlace] = []

    def at_new_place() -> LogPlace:
        if places:
            places.pop().close()
        is_memory = request.param == "memory"
        places.append(MemoryPlace() if is_memory else BucketPlace(tmp_path_factory.mktemp("log")))
        return places[-1]

    yield at_new_place
    for place in places:
        place.close()


def replayed(log: ChangeLog, start: int, rows: Rows, max_changes: int = ANY) -> Rows:
    """Returns the rows after all changes from an offset on; each must fit to the row before it."""
    found, end = dict(rows), log.span.offset_of(log.span.end)
    while count_of(start) < count_of(end):
        for record in log.read(start, end, DEFINITION, max_changes=max_changes, max_bytes=ANY):
            for kind, row in zip(record.changes.kinds.tolist(), record.changes.rows.to_pylist(), strict=True):
                if kind in (RowKind.UPDATE_BEFORE, RowKind.DELETE):
                    assert found.pop(row["player"]) == row["score"]
                else:
                    assert row["player"] not in found
                    found[row["player"]] = row["score"]
            start = record.offset + len(record.changes)
    return found


class OwnedHistory:
    """A log, and what its rows were after each of its commits. Several owners write it one after another.

    Attributes:
        owner: The current owner.
        rows: The rows by the number of changes that lead to them.
        offsets: The offsets that changes have had, those that a power failure has undone included.
        synced: How many changes are durable for certain.
    """

    def __init__(self, place: LogPlace) -> None:
        self._place = place
        self.owner = place.open()
        self.rows: dict[int, Rows] = {0: {}}
        self.offsets: list[int] = []
        self.synced = 0

    @property
    def end(self) -> int:
        return self.owner.log.span.end

    def offset_of(self, changes: int) -> int:
        return self.owner.log.span.offset_of(changes)

    def write(self, player: str, score: int | None) -> None:
        before, rows = self.end, dict(self.rows[self.end])
        if score is None and player not in rows:
            return
        self.owner.prepare(player, score)()
        rows.pop(player, None)
        self.rows[self.end] = rows | ({} if score is None else {player: score})
        self.offsets += [self.offset_of(number) for number in range(before, self.end)]

    def sync(self) -> None:
        self.owner.sync()
        self.synced = self.end
        assert self.owner.log.durable_offset == self.offset_of(self.end)

    def write_some(self, data: st.DataObject) -> None:
        players, scores = st.sampled_from("abcde"), st.integers(0, 3) | st.none()
        for player, score, syncs in data.draw(st.lists(st.tuples(players, scores, st.booleans()), max_size=8)):
            self.write(player, score)
            if syncs:
                self.sync()

    def lose_power(self, data: st.DataObject) -> None:
        """Checks that a prefix of the commits is left, with all that were synced."""
        self.owner = self._place.lose_power(self.owner, data)
        assert self.end >= self.synced
        self._began()

    def reopen(self) -> None:
        """Checks that a clean stop loses nothing."""
        end = self.end
        self.owner.close()
        self.owner = self._place.open()
        assert self.end == end
        self._began()

    def _began(self) -> None:
        assert self.owner.rows() == self.rows[self.end]
        assert self.owner.log.durable_offset == self.offset_of(self.end)
        self.rows = {changes: rows for changes, rows in self.rows.items() if changes <= self.end}
        self.synced = self.end


@given(data=st.data())
@examples(8)
def test_replay_from_any_position_leads_to_the_rows_whatever_has_stopped_the_owners(
    new: Callable[[], LogPlace], data: st.DataObject
) -> None:
    history = OwnedHistory(new())
    for _ in range(data.draw(st.integers(1, 3))):
        history.write_some(data)
        if data.draw(st.booleans()):
            history.lose_power(data)
        else:
            history.reopen()
    history.write_some(data)
    for start, rows in history.rows.items():
        found = replayed(history.owner.log, history.offset_of(start), rows, data.draw(st.sampled_from([2, 3, ANY])))
        assert found == history.owner.rows() == history.rows[history.end]


@given(data=st.data())
@examples(8)
def test_an_offset_that_a_power_failure_has_undone_is_never_used_again(
    new: Callable[[], LogPlace], data: st.DataObject
) -> None:
    """Even if its owner never synced. Readers beyond what is left get an error, and all others continue."""
    history = OwnedHistory(new())
    undone, beyond = set[int](), set[int]()
    for _ in range(data.draw(st.integers(1, 3))):
        history.write_some(data)
        history.lose_power(data)
        lost = {offset for offset in history.offsets if count_of(offset) >= history.end}
        undone |= lost
        # The first of them is also the position after the last change that is left.
        beyond |= {offset for offset in lost if count_of(offset) > history.end}
        history.offsets = [offset for offset in history.offsets if offset not in lost]
    history.write("last", 1)
    assert not undone & {*history.offsets}
    span = history.owner.log.span
    for offset in beyond:
        with pytest.raises(PositionOutOfRange):
            span.resolve(offset, location="here")
    for offset in history.offsets:
        assert span.resolve(offset, location="here") == offset


def test_a_new_epoch_begins_where_an_owner_has_not_closed_the_log(new: Callable[[], LogPlace]) -> None:
    place = new()
    owner, end = place.open(), 0
    for number in range(3):
        owner.prepare("a", number)()
        owner.sync()
        owner, before = place.take_over(owner), owner.log.span
        span = owner.log.span
        assert span.end == before.end
        assert [*span.epoch_starts[:-1], span.end] == [*before.epoch_starts, before.end]
        assert span.resolve(before.offset_of(before.end), location="here") == span.offset_of(span.end) > end
        end = span.offset_of(span.end)


def test_a_replaced_owner_can_neither_append_nor_sync(new: Callable[[], LogPlace]) -> None:
    place = new()
    first = place.open()
    first.prepare("a", 1)()
    first.sync()
    first.prepare("b", 2)()
    late = [first.prepare(player, 3) for player in "cd"]
    second = place.take_over(first)
    kept = second.rows()
    assert kept in ({"a": 1}, {"a": 1, "b": 2}), "what was not synced may be there"
    for write in late:
        with pytest.raises(ScanKvError):
            write_and_sync(first, write)
    with pytest.raises(ScanKvError):
        first.sync()
    second.prepare("e", 4)()
    second.sync()
    with pytest.raises(ScanKvError):
        late[0]()
    second.close()
    third = place.open()
    assert third.rows() == replayed(third.log, 0, {}) == {**kept, "e": 4}


def write_and_sync(owner: LogOwner, write: Callable[[], None]) -> None:
    write()
    owner.sync()
