"""Files are synced as the documentation lists, and a power cut in the middle of a write is told from damage."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from aio_client import DataLoss, sync
from tests.support.command_line import CommandLine
from tests.support.offline import bucket_path
from tests.support.power_cut import DiskModel, Node
from tests.support.power_story import PLAIN, SETTINGS, PowerStory
from tests.support.recording_disk import RecordingDisk, compile_recorder
from tests.support.server_process import ServerProcess
from tests.support.tables import SCORES

if TYPE_CHECKING:
    from collections.abc import Iterator

_PAGE: Final = Path(__file__).parents[2] / "docs" / "internals" / "power-cuts.md"
_TEMPORARY: Final = re.compile(r".*(\.partial[^/]*|\.dbtmp|\.tmp(/.*)?)")
_CONTENTS: Final = ("synced", "when created", "not synced", "")
_NAMES: Final = ("before the answer", "soon", "before the answer, new ones", "soon, new ones", "not synced")


@dataclass(frozen=True)
class Recorded:
    """A server that ran a story, was stopped after it, and was started once more, without the archive.

    Attributes:
        disk: What it has written.
        story: The story.
        restarted: The moment when it was ready again.
    """

    disk: RecordingDisk
    story: PowerStory
    restarted: int


def record(directory: Path, recorder: Path) -> Recorded:
    disk = RecordingDisk(directory, recorder)
    story = PowerStory(disk)
    location = ("--backup-location", str(disk.root / "backups"))
    with ServerProcess(disk.root / "data", *location, *SETTINGS, wrapper=disk.wrapper) as server:
        story.run(server.url)
        server.stop()
    with ServerProcess(disk.root / "data", wrapper=disk.wrapper) as server:
        restarted = disk.moment()
        server.stop()
    return Recorded(disk, story, restarted)


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_recorder(tmp_path_factory.mktemp("recorder"))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, recorder: Path) -> Recorded:
    return record(tmp_path_factory.mktemp("recorded"), recorder)


@pytest.mark.breadth
def test_the_recording_has_everything_that_the_server_has_written(recorded: Recorded) -> None:
    live = dict(recorded.disk.replay("strict").files())
    root = recorded.disk.root
    there = {f"/{path.relative_to(root)}" for path in root.rglob("*")} - {"/data.log"}
    assert live.keys() == there
    for path, node in live.items():
        if not node.is_directory:
            assert node.live() == (root / path[1:]).read_bytes(), path


@dataclass(frozen=True)
class Listed:
    """A line of the documentation: which files, and what is synced of them."""

    paths: re.Pattern[str]
    content: str
    name: str


def listed() -> list[Listed]:
    lines = []
    prefix = ""
    for line in _PAGE.read_text().splitlines():
        if line.startswith("| in the "):
            prefix = "/data" if "data directory" in line else "/backups"
        elif line.startswith("| `"):
            paths, content, name, _ = (cell.strip() for cell in line.strip("|").split("|"))
            assert content in _CONTENTS, line
            assert name in _NAMES, line
            patterns = [_pattern(prefix, each) for each in re.findall(r"`([^`]+)`", paths)]
            lines.append(Listed(re.compile("|".join(patterns)), content, name))
    return lines


def _pattern(prefix: str, path: str) -> str:
    if path == ".":
        return prefix
    # What a table has, each of its tablets has, too.
    path = path.replace("tables/*/*/", "tables/*/*//") if not path.startswith("tables/*/*/tablets") else path
    parts = re.escape(path).replace(r"\*\*", ".+").replace(r"\*", "[^/]*")
    return f"{prefix}/{parts}".replace("//", r"/(?:tablets/\d+/)?")


def find_line(lines: list[Listed], path: str) -> Listed | None:
    """Returns what is listed of a path. None: it is temporary."""
    if _TEMPORARY.fullmatch(path):
        return None
    for line in lines:
        if line.paths.fullmatch(path):
            return line
    raise AssertionError(f"{path} is not listed in {_PAGE.name}: say there when it is synced")


def names_that_differ(path: str, node: Node) -> Iterator[tuple[str, bool]]:
    """Yields the paths whose names are not durable, or durable although removed, and whether something is there."""
    for name in {*node.entries, *node.durable}:
        if node.entries.get(name) is not node.durable.get(name):
            yield f"{path}/{name}", name in node.entries
    for name, each in node.entries.items():
        if each.is_directory:
            yield from names_that_differ(f"{path}/{name}", each)


def check_names(disk: DiskModel, lines: list[Listed], after: str, *, is_end: bool = False) -> None:
    for path, is_there in names_that_differ("", disk.root):
        if (line := find_line(lines, path)) is None or line.name == "not synced":
            continue
        may_differ = (line.name.startswith("soon") and not is_end) or (line.name.endswith("new ones") and not is_there)
        assert may_differ, f"the {'name' if is_there else 'removal'} of {path} is not durable after: {after}"


def test_files_and_directories_are_synced_as_the_documentation_lists(recorded: Recorded) -> None:
    lines, disk = listed(), DiskModel("strict")
    ends = {step.end: step.name for step in recorded.story.steps} | {recorded.restarted: "the start without archive"}
    for change in recorded.disk.changes():
        disk.apply(change)
        if change.type == "r" and (line := find_line(lines, change.second.decode())) is not None:
            node = disk.find(change.second.decode())
            assert line.content != "synced" or not node.pending, f"{change.second.decode()} got its name unsynced"
        if (name := ends.get(change.end)) is not None:
            check_names(disk, lines, name)
    check_names(disk, lines, "the end", is_end=True)
    for path, node in disk.files():
        line = find_line(lines, path)
        assert line is None or line.content != "synced" or not node.pending, f"the content of {path} is not durable"


@dataclass(frozen=True)
class CutWrite:
    """A long write to the write-ahead log of a bucket.

    Attributes:
        after: The moment after it, at which it is not synced.
        answered: The moment when it was acknowledged.
        file: The path of the log.
        content: What a cut leaves of the log: the write up to the end of a block, then zeros.
    """

    after: int
    answered: int
    file: str
    content: bytes


def find_cut_write(recorded: Recorded, table: str) -> CutWrite:
    """Returns the last write to a table that is longer than a block."""
    step = next(step for step in reversed(recorded.story.steps) if step.name == f"upsert {table}" and step.is_long)
    disk = recorded.disk.replay("ext4", step.start)
    for change in recorded.disk.changes(step.start, step.end):
        disk.apply(change)
        if change.type == "w" and len(change.first) > 2 * 4096:
            (path,) = [path for path, node in disk.files() if node is disk.node(change.inode)]
            if not path.endswith(".log"):
                continue
            end = (change.number // 4096 + 2) * 4096
            content = disk.find(path).live()
            return CutWrite(change.end, step.end, path, bytes(content[:end].ljust(len(content), b"\0")))
    raise AssertionError("no long write")


@pytest.mark.parametrize("offline", [False, True])
def test_a_write_that_was_not_acknowledged_is_no_damage_if_a_cut_leaves_its_beginning(
    recorded: Recorded, tmp_path: Path, *, offline: bool
) -> None:
    cut, left = find_cut_write(recorded, PLAIN), tmp_path / "left"
    recorded.disk.replay("ext4", cut.after).write(left)
    (left / cut.file[1:]).write_bytes(cut.content)
    if offline:
        found = CommandLine("")("check", "--offline", str(left / "data"), "--json").json
        assert not [each for each in found if each["problem"]]
    else:
        with ServerProcess(left / "data") as server, sync.connect(server.url) as client:
            assert client.table(PLAIN).count() == len(client.table(PLAIN).scan().to_arrow())
            assert client.damaged_tables() == []


def test_a_write_that_was_acknowledged_is_damage_if_its_end_is_zeros(recorded: Recorded, tmp_path: Path) -> None:
    cut, left = find_cut_write(recorded, PLAIN), tmp_path / "left"
    disk = recorded.disk.replay("ext4", cut.answered)
    disk.write(left)
    (left / cut.file[1:]).write_bytes(cut.content)
    watermark = cut.file.rpartition("/")[0] + ".durable"
    (left / watermark[1:]).write_bytes(disk.find(watermark).live())
    with ServerProcess(left / "data") as server, sync.connect(server.url) as client:
        with pytest.raises(DataLoss, match="has lost acknowledged changes"):
            client.table(PLAIN).scan().to_arrow()


def test_a_recovery_is_durable_when_it_is_reported(recorder: Path, tmp_path: Path) -> None:
    disk = RecordingDisk(tmp_path, recorder)
    data = disk.root / "data"
    with ServerProcess(data, wrapper=disk.wrapper) as server, sync.connect(server.url) as client:
        table = client.create_table("cut.lost", SCORES, primary_key=["player"], buckets=1)
        for number in range(40):
            table.upsert([{"player": f"player {number}", "score": number}])
        server.kill()
    (log,) = [path for path in bucket_path(data, "cut.lost", 0).glob("*.log") if path.stat().st_size]
    watermark = bucket_path(data, "cut.lost", 0).with_suffix(".durable")
    half = str(log.stat().st_size // 2)
    for command in (["truncate", "--size", half, str(log)], ["sync", str(log)], ["sync", str(watermark)]):
        subprocess.run([*disk.wrapper, *command], check=True)
    command = [sys.executable, "-m", "scankv", "check", "--offline", str(data), "--recover"]
    content = log.read_bytes()
    found = subprocess.run([*disk.wrapper, *command], check=True, capture_output=True, text=True)
    assert "acknowledged changes are lost" in found.stdout + found.stderr
    disk.replay("strict").write(tmp_path / "left")
    kept = [path.read_bytes() for path in (tmp_path / "left" / "data" / "damaged").rglob("*.log")]
    assert content in kept, "what was replaced is gone"
    with ServerProcess(tmp_path / "left" / "data") as server, sync.connect(server.url) as client:
        assert 0 < client.table("cut.lost").count() < 40
        assert client.damaged_tables() == []
