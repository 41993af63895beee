"""The rules by which a disk keeps what was written when the power is cut.

Both rules: the content of a file is durable as of the beginning of its last completed sync. Whatever was written later
may be kept as well, in part or not at all.

`strict` (what POSIX promises): the name of a file or a directory is durable as of the beginning of the last completed
sync of the directory that it is in. A rename is one step, durable once either of its directories was synced.

`ext4`: all changes of names are in one journal, in their order. A sync of a file or a directory that has changes in the
journal, which include a changed size, makes everything durable that is in the journal.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.recording_disk import DiskChange

__all__ = ["RULES", "DiskModel", "NameStep", "Node"]

RULES: Final = ("strict", "ext4")
_SECTOR: Final = 512
_BLOCK: Final = 4096


@dataclass(eq=False, slots=True)
class Node:
    """A file or a directory.

    Attributes:
        is_directory: Whether it is a directory.
        content: The content of a file that is durable.
        pending: The writes (offset, data) and truncations (size, None) of a file that are not durable, in their order.
        applied: How many writes and truncations were made durable.
        synced: How many completed syncs it has had.
        entries: What is in a directory now.
        durable: What is durably in a directory.
        journaled: How many steps the journal had before the last change of this node: see the rule `ext4`. -1: none.
    """

    is_directory: bool
    content: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    applied: int = 0
    synced: int = 0
    entries: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    journaled: int = -1

    def live(self) -> bytearray:
        """Returns the content of a file as its readers see it."""
        return _applied(self.content, self.pending)


@dataclass(eq=False, slots=True)
class NameStep:
    """One change of entries, which a cut undoes completely or not at all.

    Attributes:
        changes: The directory, the name in it, and the new node; None: the node that was there is gone.
        paths: The paths that it concerns.
        number: How many steps were before it.
    """

    changes: list[tuple[Node, str, Node | None]]
    paths: list[str]
    number: int


class DiskModel:
    """A disk, to which recorded changes are applied.

    Args:
        rule: One of `RULES`.

    Attributes:
        root: The root directory, which is durable.
        steps: The changes of entries that are not durable, in their order.
    """

    def __init__(self, rule: str) -> None:
        assert rule in RULES
        self._is_strict = rule == "strict"
        self.root = Node(is_directory=True)
        self.steps: list[NameStep] = []
        self._count = 0
        self._nodes: dict[int, Node] = {}
        self._directories = [self.root]
        self._syncs: dict[int, tuple[int, int]] = {}

    def add_durable(self, path: str, inode: int, content: bytes | None) -> None:
        """Adds a file, a link to one that was added before, or with None as its content a directory."""
        above, _, name = path.rpartition("/")
        if content is None or inode not in self._nodes:
            self._nodes[inode] = Node(is_directory=content is None, content=bytearray(content or b""))
        node = self._nodes[inode]
        self._directories += [node] if node.is_directory else []
        for entries in (self.find(above).entries, self.find(above).durable):
            entries[name] = node

    def apply(self, change: DiskChange) -> None:
        """Applies one change."""
        if change.type in ("c", "m"):
            node = self._nodes[change.inode] = Node(is_directory=change.type == "m")
            self._directories += [node] if node.is_directory else []
            self._add([(change.first.decode(), node)])
        elif change.type == "u":
            self._add([(change.first.decode(), None)])
        elif change.type == "r":
            source, target = change.first.decode(), change.second.decode()
            node = self.find(source)
            if self._find_in_parent(target) is not node:
                self._add([(source, None), (target, node)])
        elif change.type == "l":
            self._add([(change.second.decode(), self.find(change.first.decode()))])
        else:
            # The root was not created by a recorded change.
            self._apply_to(self._nodes.get(change.inode, self.root), change)

    def _apply_to(self, node: Node, change: DiskChange) -> None:
        if change.type == "w":
            node.pending.append((change.number, change.first))
            node.journaled = self._count  # It may have changed the size.
        elif change.type == "t":
            node.pending.append((change.number, None))
            node.journaled = self._count
        elif change.type == "f":
            self._syncs[change.number] = (node.applied + len(node.pending), self._count)
        elif change.type == "F":
            self._sync(node, *self._syncs.pop(change.number))
        else:
            raise AssertionError(f"a change of type {change.type!r}")

    def _sync(self, node: Node, written: int, before: int) -> None:
        node.synced += 1
        if (count := written - node.applied) > 0:
            node.content = _applied(node.content, node.pending[:count])
            del node.pending[:count]
            node.applied = written
        if self._is_strict:
            is_synced = [any(directory is node for directory, _, _ in step.changes) for step in self.steps]
        else:
            committed = self.steps[0].number if self.steps else self._count
            is_synced = [node.journaled >= committed] * len(self.steps)
        rest = []
        for step, durable in zip(self.steps, is_synced, strict=True):
            if durable and step.number < before:
                _enter(step.changes, lambda directory: directory.durable)
            else:
                rest.append(step)
        self.steps = rest

    def _add(self, changes: list[tuple[str, Node | None]]) -> None:
        found: list[tuple[Node, str, Node | None]] = []
        for path, node in changes:
            above, _, name = path.rpartition("/")
            found.append((self.find(above), name, node))
        self.steps.append(NameStep(found, [path for path, _ in changes], self._count))
        for directory, name, node in found:
            for each in (directory, node, directory.entries.get(name)):
                if each is not None:
                    each.journaled = self._count
        self._count += 1
        _enter(found, lambda directory: directory.entries)

    def node(self, inode: int) -> Node:
        """Returns the file or the directory that was created last with this number of its inode."""
        return self._nodes[inode]

    def find(self, path: str) -> Node:
        """Returns what is at a path now."""
        node = self.root
        for name in filter(None, path.split("/")):
            node = node.entries[name]
        return node

    def _find_in_parent(self, path: str) -> Node | None:
        directory, _, name = path.rpartition("/")
        return self.find(directory).entries.get(name)

    def files(self) -> Iterator[tuple[str, Node]]:
        """Yields the path and the node of everything that is there now."""
        yield from _walk("", self.root)

    def write(self, target: Path, chance: random.Random | None = None) -> None:
        """Makes a directory with what a cut leaves.

        Args:
            target: The directory, which does not exist.
            chance: Decides how much is left of what was not durable. None: nothing.
        """
        entries = {id(node): dict(node.durable) for node in self._directories}
        if chance is not None:
            for step in self._kept_steps(chance):
                _enter(step.changes, lambda directory: entries[id(directory)])
        written: dict[int, Path] = {}

        def fill(node: Node, path: Path) -> None:
            path.mkdir(mode=0o700)
            for name, each in entries[id(node)].items():
                if each.is_directory:
                    fill(each, path / name)
                elif (first := written.get(id(each))) is not None:
                    os.link(first, path / name)
                else:
                    written[id(each)] = path / name
                    (path / name).write_bytes(each.content if chance is None else _torn(each, chance))
                    (path / name).chmod(0o600)

        fill(self.root, target)

    def _kept_steps(self, chance: random.Random) -> list[NameStep]:
        if not self._is_strict:
            return self.steps[: chance.randint(0, len(self.steps))]
        share = chance.choice([0.1, 0.5, 0.9])
        return [step for step in self.steps if chance.random() < share]


def _enter(changes: list[tuple[Node, str, Node | None]], entries_of: Callable[[Node], dict[str, Node]]) -> None:
    for directory, name, node in changes:
        if node is None:
            entries_of(directory).pop(name, None)
        else:
            entries_of(directory)[name] = node


def _walk(path: str, node: Node) -> Iterator[tuple[str, Node]]:
    for name, each in node.entries.items():
        yield f"{path}/{name}", each
        if each.is_directory:
            yield from _walk(f"{path}/{name}", each)


def _applied(content: bytearray, writes: list[tuple[int, bytes | None]]) -> bytearray:
    content = bytearray(content)
    for at, data in writes:
        if len(content) < at:
            content.extend(bytes(at - len(content)))
        if data is None:
            del content[at:]
        else:
            content[at : at + len(data)] = data
    return content


def _torn(node: Node, chance: random.Random) -> bytearray:
    """Returns the durable content of a file with some of what was written later.

    The first writes are kept, and the next one up to the end of a sector or a block. What follows is cut off, or, since
    the size of a file may become durable before its content, zeros.
    """
    if not node.pending:
        return node.content
    kept = chance.randint(0, len(node.pending))
    content = _applied(node.content, node.pending[:kept])
    if kept < len(node.pending):
        at, data = node.pending[kept]
        if data is not None:
            unit = chance.choice([_SECTOR, _BLOCK])
            end = max(at, chance.randint(at, at + len(data)) // unit * unit)
            content = _applied(content, [(at, data[: end - at])])
    if chance.random() < 0.5:
        size = max(len(node.live()), len(content))
        end = chance.choice([size, min(size, -(-len(content) // _BLOCK) * _BLOCK)])
        content.extend(bytes(end - len(content)))
    return content
