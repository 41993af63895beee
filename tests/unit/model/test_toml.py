"""The standard library reads TOML that we have written as the same values."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.toml import toml_value

_TEXTS = st.text(st.characters(codec="utf-8"))
_PLAIN = st.one_of(_TEXTS, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))
_VALUES = st.recursive(_PLAIN, lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner), max_leaves=8)


@given(_VALUES)
def test_a_value_is_read_as_it_was_written(value: Any) -> None:
    read = tomllib.loads(f"value = {toml_value(value)}\n")["value"]
    assert read == value
    assert type(read) is type(value)


def test_what_toml_has_not_is_refused() -> None:
    with pytest.raises(TypeError, match="NoneType"):
        toml_value([None])
