"""Lets pyiceberg read the Avro files of a table so that a damaged one is an error, and does not end the process."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_lock = threading.Lock()
_users = 0
_compiled: Any = None


@contextmanager
def checked_avro() -> Iterator[None]:
    """Makes pyiceberg use its decoder in Python for the length of the block.

    Its compiled decoder trusts the lengths in a file, and reads past the end of its memory. pyiceberg decodes files in
    threads of its own, so the choice applies to all threads. Reading other tables is slower in the meantime.
    """
    import pyiceberg.avro.file
    from pyiceberg.avro.decoder import StreamingBinaryDecoder

    avro_file: Any = pyiceberg.avro.file

    global _users, _compiled
    with _lock:
        if not _users:
            _compiled = avro_file.new_decoder
            avro_file.new_decoder = StreamingBinaryDecoder
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                avro_file.new_decoder = _compiled
