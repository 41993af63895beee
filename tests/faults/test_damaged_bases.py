"""Damaged, partly written and unwritable bases are found before a row of them is returned; an older base stays in use.

Run as `python -m tests.faults.test_damaged_bases kills|limits BATCHES PATH`, it builds bases in processes that die or
may write only short files. It is a separate process, since a process without threads can be forked often.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import sys
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from scankv.model.errors import DataLoss
from streaming_server.storage.columnar import base_writer, columnar_base
from streaming_server.storage.columnar.base_writer import BaseWriter
from streaming_server.storage.columnar.columnar_base import ColumnarBase, newest_base, remove_bases
from streaming_server.storage.files import checked_json
from streaming_server.storage.rows.key_encoder import KeyEncoder
from tests.support.forked import run_forked
from tests.support.tables import define, exact_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

FILES = ["rows.arrow", "keys.arrow", "zones.arrow", "manifest.json"]
OLD, NEW = 100, 200
"""The log offsets of the two bases. Each row contains the offset of its base."""
PLACE = "bucket 3"
_UNWRITABLE = 3

DEFINITION = define(
    pa.schema(
        [
            ("k", pa.string()),
            ("n", pa.int64()),
            ("deep", pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.int16())), ("s", pa.string())]))),
            ("t", pa.timestamp("us")),
        ]
    )
)


def rows_of(offset: int, rows: int) -> pa.RecordBatch:
    deep: list[Any] = [None, [], [{"m": [("a", 1), ("b", None)], "s": "é"}, None]]
    return pa.RecordBatch.from_pylist(
        [{"k": f"{offset} {i:05}", "n": offset, "deep": deep[i % 3], "t": i if i % 4 else None} for i in range(rows)],
        schema=DEFINITION.schema.arrow,
    )


def build(directory: Path, offset: int, batches: int, batch_rows: int = 8) -> Path:
    """Writes a base as a build does, which discards a base that cannot be written."""
    rows = rows_of(offset, batches * batch_rows)
    keys, _ = KeyEncoder(DEFINITION).encode(rows)
    writer = BaseWriter(directory, DEFINITION, 3, now_micros=time.time_ns() // 1000)
    try:
        for start in range(0, rows.num_rows, batch_rows - 1):
            writer.write(rows.slice(start, batch_rows - 1), keys.slice(start, batch_rows - 1))
    except BaseException:
        writer.discard()
        raise
    return writer.finish(offset)


def read_all(base: ColumnarBase) -> tuple[list[tuple[Any, ...]], list[bytes], list[Any]]:
    """Returns all rows of a base."""
    numbers = range(len(base))
    rows = [row for number in numbers for row in exact_rows(base.batch(number))]
    keys = [key for number in numbers for key in base.keys(number).to_pylist()]
    about: list[Any] = [
        base.info,
        base.schema,
        [(base.first_keys[number], base.last_keys[number], base.rows_in(number)) for number in numbers],
        [base.zone(number, name) for number in numbers for name in base.schema.names],
        [base.message(number) for number in numbers],
    ]
    return rows, keys, about


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_writer, "BATCH_ROWS", 8)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return build(tmp_path / "0003", OLD, 5)


def damages(data: bytes, times: int, seed: str) -> Iterator[bytes]:
    """Returns damaged copies of some bytes: a bit flipped, bytes overwritten, the end missing or extended."""
    rng = random.Random(seed)
    for _ in range(times):
        broken, place, way = bytearray(data), rng.randrange(len(data)), rng.random()
        if way < 0.6:
            broken[place] ^= 1 << rng.randrange(8)
        elif way < 0.8:
            broken[place : place + 4] = rng.choice([b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f"])
        elif way < 0.95:
            del broken[place:]
        else:
            broken += bytes(rng.randrange(1, 100))
        yield bytes(broken)


@pytest.mark.parametrize("name", FILES)
def test_damage_at_any_position_of_any_file_is_found_or_harmless(base: Path, name: str) -> None:
    sound, good = read_all(ColumnarBase.open(base, PLACE)), (base / name).read_bytes()
    found = 0
    for broken in damages(good, 150, name):
        (base / name).write_bytes(broken)
        try:
            rows, keys, about = read_all(ColumnarBase.open(base, PLACE))
        except DataLoss as error:
            found += str(base) in error.message and error.message.startswith(PLACE)
        else:
            assert (rows, keys, about[1:]) == (sound[0], sound[1], sound[2][1:])
            # Damage to the white space between JSON values is harmless.
            assert broken == good or name == "manifest.json"
    assert found > 120


@pytest.mark.parametrize("name", ["rows.arrow", "keys.arrow"])
def test_damage_of_a_batch_is_found_when_that_batch_is_read(base: Path, name: str) -> None:
    sound = ColumnarBase.open(base, PLACE)
    expected = exact_rows(sound.batch(0)), sound.keys(0)
    data = bytearray((base / name).read_bytes())
    # Inside the third message, far from the header and the footer.
    data[len(data) // 2] ^= 1
    (base / name).write_bytes(data)
    damaged = ColumnarBase.open(base, PLACE)
    assert (exact_rows(damaged.batch(0)), damaged.keys(0)) == expected
    for _ in range(2):
        with pytest.raises(DataLoss, match=f"bucket 3: the file .*{name} of a columnar base is damaged"):
            damaged.keys(2) if name == "keys.arrow" else damaged.batch(2)
    if name == "rows.arrow":
        with pytest.raises(DataLoss, match="another checksum"):
            damaged.message(2)


@pytest.mark.parametrize("name", ["rows.arrow", "keys.arrow"])
def test_a_truncated_file_is_found_even_if_it_was_read_before(base: Path, name: str) -> None:
    opened = ColumnarBase.open(base, PLACE)
    read_all(opened)
    os.truncate(base / name, (base / name).stat().st_size - 1)
    ask = opened.keys if name == "keys.arrow" else opened.batch
    for number in range(len(opened)):
        with pytest.raises(DataLoss, match=f"bucket 3: the file .*{name} .* is damaged: it was truncated"):
            ask(number)


@pytest.mark.parametrize("name", ["rows.arrow", "keys.arrow"])
def test_an_unreadable_batch_is_damage_and_is_read_again_later(base: Path, name: str) -> None:
    opened = ColumnarBase.open(base, PLACE)
    ask = opened.keys if name == "keys.arrow" else opened.message
    read = os.pread

    def failing(file: int, size: int, place: int) -> bytes:
        if Path(f"/proc/self/fd/{file}").readlink().name == name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(file, size, place)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pread", failing)
        with pytest.raises(DataLoss, match=f"bucket 3: the file .*{name} .* cannot be read: Input/output error"):
            ask(1)
    assert ask(1).equals((ColumnarBase.open(base, PLACE).keys if name == "keys.arrow" else opened.message)(1))


def test_zone_maps_are_in_memory_and_survive_a_truncated_file(base: Path) -> None:
    opened = ColumnarBase.open(base, PLACE)
    expected = read_all(opened)
    os.truncate(base / "zones.arrow", 0)
    assert read_all(opened) == expected


@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_empty_file_is_found(base: Path, name: str) -> None:
    (base / name).write_bytes(b"")
    with pytest.raises(DataLoss):
        ColumnarBase.open(base, PLACE)
    (base / name).unlink()
    with pytest.raises(DataLoss):
        ColumnarBase.open(base, PLACE)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_base_is_found(base: Path, name: str) -> None:
    shutil.copy(build(base.parent, NEW, 5) / name, base / name)
    with pytest.raises(DataLoss):
        read_all(ColumnarBase.open(base, PLACE))


@pytest.mark.parametrize("name", ["zones.arrow", "manifest.json"])
def test_an_older_base_replaces_a_damaged_one_which_is_removed(
    base: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    newer = build(base.parent, NEW, 5)
    data = bytearray((newer / name).read_bytes())
    data[len(data) // 2] ^= 8
    (newer / name).write_bytes(data)
    found = newest_base(base.parent, PLACE)
    assert found is not None
    assert found.info.log_offset == OLD
    assert [path.name for path in base.parent.iterdir()] == [base.name]
    assert str(newer) in caplog.text


@pytest.mark.parametrize(("what", "batches"), [("kills", 12), ("limits", 0), ("limits", 12)])
@pytest.mark.timeout(180)  # a dozen kills, each with a recovery
@pytest.mark.breadth
def test_a_build_that_is_killed_or_finds_a_full_disk_leaves_the_older_base_in_use(
    tmp_path: Path, what: str, batches: int
) -> None:
    done = run_forked(sys.executable, "-m", __name__, what, str(batches), str(tmp_path), timeout=600)
    assert done.returncode == 0, done.stderr.decode()
    tried, old = map(int, done.stdout.split())
    assert tried > old > 10


def main(what: str, batches: str, path: str) -> None:
    """Builds a newer base repeatedly, hindered a little later each time, until a build succeeds. Checks what is left.

    Prints the number of builds, and after how many of them the older base was still the newest.
    """
    base_writer.BATCH_ROWS = 8  # type: ignore[misc]  # it is constant but for tests
    build(Path(path) / "start", OLD, 2)
    old = 0
    for step in count():
        directory = Path(shutil.copytree(Path(path) / "start", Path(path) / f"{what}-{step}"))
        child = os.fork()
        if not child:
            os._exit(hindered(what, step, directory, int(batches)))
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if ended == _UNWRITABLE:
            assert len(list(directory.iterdir())) == 1, f"something is left at step {step}"
        found = newest_base(directory, PLACE)
        assert found is not None, f"no base at step {step}"
        offset = found.info.log_offset
        assert offset == NEW if ended == 0 else old == step or offset == NEW, f"an older base at step {step}"
        rows = rows_of(offset, 8 * (2 if offset == OLD else int(batches)))
        assert read_all(found)[0] == exact_rows(rows), f"other rows at step {step}"
        assert [entry.name for entry in directory.iterdir()] == [found.info.name], f"something is left at step {step}"
        old += offset == OLD
        shutil.rmtree(directory)
        if ended == 0:
            sys.stdout.write(f"{step + 1} {old}\n")
            return


def hindered(what: str, step: int, directory: Path, batches: int) -> int:
    """Builds a base and removes the previous one in a child process. Returns 0 if that succeeds."""
    if what == "limits":
        resource.setrlimit(resource.RLIMIT_FSIZE, (step * (200 + 40 * batches), resource.RLIM_INFINITY))
    else:
        sys.settrace(_KillsAtLine(step))
    try:
        newer = build(directory, NEW, batches)
        remove_bases(directory, but=newer.name)
    except OSError:
        return _UNWRITABLE
    return 0


class _KillsAtLine:
    """Kills its process with SIGKILL at the n-th line of the code that writes and removes bases.

    Each line counts when it is reached for the first time.
    """

    _FILES = (base_writer.__file__, columnar_base.__file__, checked_json.__file__)

    def __init__(self, lines: int) -> None:
        self._lines = lines
        self._seen: set[tuple[str, int]] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> _KillsAtLine | None:
        if frame.f_code.co_filename not in self._FILES:
            return None
        if event == "line":
            self._seen.add((frame.f_code.co_filename, frame.f_lineno))
            if len(self._seen) > self._lines:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


if __name__ == "__main__":
    main(*sys.argv[1:])
