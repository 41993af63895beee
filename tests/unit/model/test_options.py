"""The valid and invalid options of a table."""

from __future__ import annotations

import pytest

from scankv.model.errors import InvalidOption
from scankv.model.tables.options import TableOptions


def test_options_have_their_defaults() -> None:
    assert TableOptions.from_strings({}) == TableOptions(
        merge_engine="last_row", changelog="full", row_deduplicate=True, compression="lz4"
    )
    assert TableOptions().to_strings() == {}


@pytest.mark.parametrize(
    "texts",
    [{}, {"compression": "zstd"}, {"compression": "none", "row_deduplicate": "false"}],
    ids=str,
)
def test_options_that_differ_are_written_as_they_were_read(texts: dict[str, str]) -> None:
    assert TableOptions.from_strings(texts).to_strings() == texts


def test_default_that_is_given_is_not_written() -> None:
    options = TableOptions.from_strings({"compression": "lz4", "row_deduplicate": "true"})
    assert options.row_deduplicate is True
    assert options.to_strings() == {}


def test_unknown_option_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidOption, match='no table option "compresion"; did you mean "compression"') as caught:
        TableOptions.from_strings({"compresion": "zstd"})
    assert caught.value.details == {"option": "compresion"}


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("compression", "gzip", 'must be "none" or "lz4" or "zstd", not "gzip"'),
        ("row_deduplicate", "True", 'must be "true" or "false", not "True"'),
        ("merge_engine", "", 'must be "last_row" or .*, not ""'),
    ],
)
def test_value_that_is_not_allowed_is_refused(option: str, value: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        TableOptions.from_strings({option: value})


def test_options_made_in_python_are_checked_too() -> None:
    with pytest.raises(InvalidOption, match='"compression" must be "none" or "lz4" or "zstd", not "gzip"'):
        TableOptions(compression="gzip")
    with pytest.raises(InvalidOption, match="row_deduplicate must be True or False, not"):
        TableOptions(row_deduplicate="false")  # type: ignore[arg-type]
