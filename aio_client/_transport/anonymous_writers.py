"""The anonymous writers of a client, which identify the writes of calls without a named writer."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

from scankv.v1 import write_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator


class AnonymousWriters:
    """The anonymous writers of one client: as many as it has writes in flight at once.

    Each writer has one request in flight, so its repeated requests never arrive after the server has forgotten the
    answer. Tasks that write one request after another always get the same writer, so that a request that was given up
    cannot be applied after a later one.
    """

    def __init__(self) -> None:
        self._client = uuid.uuid4().hex
        self._free: list[AnonymousWriter] = []
        self._made = 0

    @contextmanager
    def one(self) -> Iterator[AnonymousWriter]:
        """Yields a writer that no other call has during the block."""
        if not self._free:
            self._free.append(AnonymousWriter(f"{self._client}-{self._made}"))
            self._made += 1
        writer = self._free.pop()
        try:
            yield writer
        finally:
            self._free.append(writer)


class AnonymousWriter:
    """One anonymous writer, which numbers its requests."""

    def __init__(self, writer_id: str) -> None:
        self._id = writer_id
        self._sequence = 0

    def next_identity(self) -> write_pb2.WriterIdentity:
        """Returns the identity of the next request. All earlier requests must be answered or given up."""
        identity = write_pb2.WriterIdentity(id=self._id, sequence=self._sequence, acked_below=self._sequence)
        self._sequence += 1
        return identity
