from __future__ import annotations

import tomllib

import pytest

from aio_client import UsageError, agg
from scankv.formats.table_files import TableFile

EARLIER = """
table = "ops.days"
schema = "day date, flights int64"
key = ["day"]

[options]
merge_engine = "aggregate"

[aggregates]
flights = "sum"
"""


def test_a_file_of_an_earlier_version_is_read() -> None:
    found = TableFile.of_values(tomllib.loads(EARLIER), "days.toml")
    assert found.arguments["aggregators"] == {"flights": agg.sum()}


def test_a_file_with_a_section_under_both_names_is_refused() -> None:
    both = tomllib.loads(EARLIER + '[aggregators]\nflights = "max"\n')
    with pytest.raises(UsageError, match=r'days\.toml: unknown field "aggregates"; did you mean "aggregators"'):
        TableFile.of_values(both, "days.toml")
