"""How the error of a query reads whose table lacks micro-batches, and which micro-batch follows which."""

from __future__ import annotations

import pytest

from aio_client import TableRecreated
from spark_bridge.micro_batches import job_step, missing_batches, transaction_id

ACCEPT = 'To continue with micro-batch 7 nevertheless, set option("accept_incarnation", "c0ffee")'


@pytest.mark.parametrize(
    ("last", "text"),
    [
        ("spark:q:t:3", "table a.b lacks micro-batches 4 to 6 of this query, which its checkpoint counts as written"),
        ("spark:q:t:5", "table a.b lacks micro-batch 6 of this query"),
        (None, "table a.b lacks micro-batches 0 to 6 of this query"),
        ("spark:q:t:9", "table a.b has the micro-batches of this query up to 9, and its checkpoint continues with 7"),
    ],
)
def test_the_error_names_the_missing_micro_batches_and_the_option_that_continues(last: str | None, text: str) -> None:
    error = missing_batches(TableRecreated("", table="a.b", incarnation="c0ffee", last=last), 7)
    assert error.message.startswith(text)
    assert error.message.endswith(ACCEPT)
    assert error.details["incarnation"] == "c0ffee"


def test_a_micro_batch_follows_the_one_before_unless_it_is_the_first_or_replaces_the_table() -> None:
    assert job_step("q", "a.b", 7, replaces=False, accepted=None).follows == transaction_id("q", "a.b", 6)
    assert job_step("q", "a.b", 0, replaces=False, accepted=None).follows == ""
    assert job_step("q", "a.b", 7, replaces=True, accepted=None).follows == ""
