"""A version has the same bytes in every process, also in those of later releases."""

from __future__ import annotations

from streaming_server.scan.versions import version_of
from streaming_server.storage.changelog.offsets import make_offset
from tests.support.tables import SCORES, define

DEFINITION = define(SCORES, buckets=3)


def test_a_version_says_the_same_in_every_process() -> None:
    assert version_of(DEFINITION, {0: 5, 1: make_offset(3, 7)}, 0).hex() == "1f1c23aaac8c86b6c2d7a380e9a7f1af"
