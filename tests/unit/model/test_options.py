"""The valid and invalid options of a table."""

from __future__ import annotations

import pytest

from scankv.model.errors import InvalidOption
from scankv.model.tables.options import TableOptions


@pytest.mark.parametrize(
    "texts",
    [{}, {"compression": "zstd"}, {"compression": "none", "row_deduplicate": "false"}],
    ids=str,
)
def test_options_that_differ_are_written_as_they_were_read(texts: dict[str, str]) -> None:
    assert TableOptions.from_strings(texts).to_strings() == texts


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


def test_some_options_change_and_the_others_stay() -> None:
    before = TableOptions(merge_engine="first_row", compression="zstd", log_retention_bytes=5)
    after = before.alter({"log_retention_seconds": "60", "columnar_base": "eager"}, ["log_retention_bytes"])
    assert after.to_strings() == {
        "merge_engine": "first_row",
        "compression": "zstd",
        "log_retention_seconds": "60",
        "columnar_base": "eager",
    }
    assert after.alter({"row_deduplicate": "false"}).row_deduplicate is False


@pytest.mark.parametrize(
    ("option", "value"),
    [("merge_engine", "first_row"), ("delete_behavior", "ignore"), ("changelog", "input"), ("compression", "zstd")],
)
def test_an_option_that_cannot_change_is_refused_with_the_reason_unless_it_stays(option: str, value: str) -> None:
    with pytest.raises(InvalidOption, match=f'"{option}" cannot change from ".*" to "{value}", because .*: create'):
        TableOptions().alter({option: value})
    other = TableOptions.from_strings({option: value})
    assert other.alter({option: value}) == other
    assert TableOptions().alter({}, [option]) == TableOptions()
    with pytest.raises(InvalidOption, match="cannot change"):
        other.alter({}, [option])


def test_options_to_change_are_checked_as_at_creation() -> None:
    with pytest.raises(InvalidOption, match='no table option "columnar_bas"; did you mean "columnar_base"'):
        TableOptions().alter({"columnar_bas": "off"})
    with pytest.raises(InvalidOption, match='no table option "columnar_bas"; did you mean "columnar_base"'):
        TableOptions().alter({}, ["columnar_bas"])
    with pytest.raises(InvalidOption, match="must be a whole number between 0 and"):
        TableOptions().alter({"log_retention_seconds": "-1"})
    with pytest.raises(InvalidOption, match='"columnar_base" is given twice'):
        TableOptions().alter({"columnar_base": "off"}, ["columnar_base"])
