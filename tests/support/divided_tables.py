"""Divides the tables that clients of the tests create into tablets, so that any test runs with tablets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from aio_client._client import client as client_module
from aio_client._client.table_definition import definition_message
from scankv.model.limits import DEFAULT_BUCKETS

if TYPE_CHECKING:
    from scankv.v1 import table_pb2

__all__ = ["TABLETS", "divide_new_tables", "tablets_of"]

TABLETS = int(os.environ.get("SCANKV_TEST_TABLETS", "1"))
"""How many tablets new tables have that can have any. Tests with the marker `whole_tables` need 1."""


def divide_new_tables() -> None:
    """Makes `create_table` of this process divide tables as `TABLETS` says, unless the caller chooses."""
    client_module.definition_message = _with_tablets  # type: ignore[attr-defined]


def _with_tablets(*arguments: Any, **given: Any) -> table_pb2.CreateTableRequest:
    request = definition_message(*arguments, **given)
    # `bootstrap` passes no number of tablets.
    if given.get("tablets") == 1 and request.primary_key and not request.partition_by:
        request.tablets = tablets_of(request.buckets or DEFAULT_BUCKETS)
    return request


def tablets_of(buckets: int) -> int:
    """Returns the number of tablets that a request for a new table with a key and so many buckets has. 0: none."""
    tablets = min(TABLETS, buckets)
    return tablets if tablets > 1 else 0
