"""Definitions of tables know which values the option `changelog` has had."""

from __future__ import annotations

import pyarrow as pa
import pytest

from scankv.model.errors import InvalidOption
from scankv.model.limits import MAX_CHANGELOG_CHANGES
from scankv.model.tables.schema import TableDefinition
from tests.support.tables import SCORES, define


def test_a_definition_remembers_earlier_values() -> None:
    first = define(SCORES)
    assert "earlier_changelogs" not in first.to_json()
    altered = first.alter_options({"changelog": "upsert"}).alter_options({"row_deduplicate": "false"})
    altered = altered.alter_options({"changelog": "none"}).alter_options({}, ["changelog"])
    assert altered.changelogs == ("full", "upsert", "none", "full")
    assert TableDefinition.from_json(altered.to_json()) == altered
    assert first.changelogs == ("full",)


def test_columns_can_be_null_in_changes_once_a_row_before_was_missing() -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64(), nullable=False)])
    first = define(schema)
    assert first.change_schema_at(1) == schema
    assert first.alter_options({"changelog": "none"}).change_schema_at(1) == schema
    altered = first.alter_options({"changelog": "upsert"}).alter_options({"changelog": "full"})
    assert [field.nullable for field in altered.change_schema_at(1)] == [False, True]


def test_the_option_changes_a_limited_number_of_times() -> None:
    altered = define(SCORES)
    for number in range(MAX_CHANGELOG_CHANGES):
        altered = altered.alter_options({"changelog": "full" if number % 2 else "upsert"})
    assert altered.alter_options({"changelog": "full"}) == altered
    with pytest.raises(InvalidOption, match="has changed 64 times"):
        altered.alter_options({"changelog": "none"})
