"""What is no table option is refused before it reaches the server."""

from __future__ import annotations

import re

import pytest

from aio_client import Client, UsageError, agg
from aio_client._client.table_definition import definition_message, option_texts


@pytest.mark.parametrize(
    ("method", "name", "value", "message"),
    [
        (definition_message, "aggregates", {"n": agg.sum()}, 'not a dict; did you mean "aggregators"'),
        (definition_message, "index", ["n"], 'not a list; did you mean "indexes"'),
        (Client.alter_table, "add_aggregates", {"n": agg.sum()}, 'not a dict; did you mean "add_aggregators"'),
        (definition_message, "ttl_second", 1.5, 'not a float; did you mean "ttl_seconds"'),
        (definition_message, "ttl_seconds", 1.5, "not a float"),
        (definition_message, "merge_engine", b"aggregate", "not a bytes"),
    ],
)
def test_a_value_that_no_option_has_is_refused_with_the_nearest_name(
    method: object, name: str, value: object, message: str
) -> None:
    expected = f'table option "{name}" must be a string, a whole number, true or false, {message}'
    with pytest.raises(UsageError, match="^" + re.escape(expected)) as caught:
        option_texts({name: value}, method)  # type: ignore[arg-type]
    assert message != "not a float" or "did you mean" not in str(caught.value)


def test_options_are_text_and_without_those_that_are_none() -> None:
    options = {"merge_engine": "versioned", "row_deduplicate": False, "ttl_seconds": 60, "ttl_column": None}
    texts = {"merge_engine": "versioned", "row_deduplicate": "false", "ttl_seconds": "60"}
    assert option_texts(options, definition_message) == texts
