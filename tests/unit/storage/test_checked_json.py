"""Files with a checksum have the checksum of what is read from them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import DataLoss
from streaming_server.storage.files.checked_json import from_checked_bytes, to_checked_bytes

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(), inner) | st.dictionaries(st.integers(0, 1023), inner, max_size=20)
    ),
)


@given(st.dictionaries(st.text(), _VALUES))
def test_what_is_written_can_be_read(content: dict[str, object]) -> None:
    read = from_checked_bytes(to_checked_bytes(content), "the file")
    assert read == json.loads(json.dumps(content))


def test_numbers_of_buckets_are_keys_like_any_other() -> None:
    offsets = {number: number for number in range(20)}
    assert from_checked_bytes(to_checked_bytes({"log_offsets": offsets}), "the file") == {
        "log_offsets": {str(number): number for number in range(20)}
    }


@given(st.dictionaries(st.text(), st.integers(), min_size=1), st.data())
def test_a_changed_value_is_noticed(content: dict[str, int], data: st.DataObject) -> None:
    stored = json.loads(to_checked_bytes(content))
    stored["content"][data.draw(st.sampled_from([*content]))] += 1
    with pytest.raises(DataLoss, match="its checksum differs"):
        from_checked_bytes(json.dumps(stored).encode(), "the file")
