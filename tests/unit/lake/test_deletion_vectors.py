"""Deletion vectors in the format of Delta Lake."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from aio_client import LakeDamaged
from scankv.lake.delta.deletion_vectors import (
    decode_z85,
    encode_z85,
    from_bytes,
    read_vector,
    to_bytes,
    vector_path,
    write_vectors,
)
from scankv.lake.location import LakeLocation
from tests.support.examples import examples

if TYPE_CHECKING:
    from pathlib import Path

_POSITIONS = st.sets(st.integers(0, 2**20), min_size=1).map(BitMap)


def test_z85_has_the_digits_of_its_specification() -> None:
    # https://rfc.zeromq.org/spec/32/, "Test case"
    assert encode_z85(bytes([0x86, 0x4F, 0xD2, 0x6F, 0xB5, 0x59, 0xF7, 0x5B])) == "HelloWorld"
    assert decode_z85("HelloWorld") == bytes([0x86, 0x4F, 0xD2, 0x6F, 0xB5, 0x59, 0xF7, 0x5B])


@examples(50)
@given(_POSITIONS)
def test_a_vector_survives_encoding(positions: BitMap) -> None:
    assert from_bytes(to_bytes(positions)) == positions


def test_short_vectors_are_in_the_log_and_long_ones_share_a_file(tmp_path: Path) -> None:
    location = LakeLocation(str(tmp_path))
    vectors = [BitMap([5]), BitMap(range(0, 60_000, 7)), BitMap(range(0, 30_000, 3))]
    stored = write_vectors(location, vectors)
    assert [each["storageType"] for each in stored] == ["i", "u", "u"]
    assert [each["cardinality"] for each in stored] == [len(each) for each in vectors]
    assert stored[1]["offset"] == 1
    assert [read_vector(location, each) for each in stored] == vectors
    (path,) = {vector_path(each) for each in stored[1:]}
    assert path is not None
    assert [each.path for each in location.list("scankv")] == [path]


def test_a_damaged_vector_is_an_error(tmp_path: Path) -> None:
    location = LakeLocation(str(tmp_path))
    (stored,) = write_vectors(location, [BitMap(range(0, 60_000, 7))])
    path = vector_path(stored)
    assert path is not None
    content = bytearray((tmp_path / path).read_bytes())
    content[100] ^= 1
    (tmp_path / path).write_bytes(content)
    with pytest.raises(LakeDamaged, match="checksum"):
        read_vector(location, stored)
    (tmp_path / path).unlink()
    with pytest.raises(LakeDamaged, match="missing"):
        read_vector(location, stored)
    with pytest.raises(LakeDamaged, match="not one bitmap"):
        read_vector(location, {"storageType": "i", "pathOrInlineDv": "00000", "sizeInBytes": 4})
