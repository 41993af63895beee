"""Who writes through a client without a name of its own."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

from scankv.v1 import write_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator


class UnnamedWriters:
    """The writers of one client that were never opened: as many as it has writes under way at once.

    Each has one request under way, so that none comes too late for the answers that the server keeps. Who writes in
    sequence always gets the same one: then a request that was given up cannot be applied behind a later one.
    """

    def __init__(self) -> None:
        """Begins with none."""
        self._client = uuid.uuid4().hex
        self._free: list[UnnamedWriter] = []
        self._made = 0

    @contextmanager
    def one(self) -> Iterator[UnnamedWriter]:
        """A writer that nobody else has for the length of the block."""
        if not self._free:
            self._free.append(UnnamedWriter(f"{self._client}-{self._made}"))
            self._made += 1
        writer = self._free.pop()
        try:
            yield writer
        finally:
            self._free.append(writer)


class UnnamedWriter:
    """One of them."""

    def __init__(self, writer_id: str) -> None:
        """Called by `UnnamedWriters`."""
        self._id = writer_id
        self._sequence = 0

    def next_identity(self) -> write_pb2.WriterIdentity:
        """That of the next request. Whatever came before is over, or given up."""
        identity = write_pb2.WriterIdentity(id=self._id, sequence=self._sequence, acked_below=self._sequence)
        self._sequence += 1
        return identity
