"""A part of a page has a time limit, and says what is wrong with it."""

from __future__ import annotations

import asyncio

import pytest

from http_gateway.console.sections import read_section
from http_gateway.console.table_query import QUERY_PARAMETERS, TableQuery
from http_gateway.parameters import read_parameters
from scankv.model.errors import DataLoss, DeadlineExceeded, ProtocolViolation, ScanKvError, Unauthenticated, UnknownCall


async def raising(error: ScanKvError) -> None:
    raise error


@pytest.mark.asyncio
async def test_a_part_that_does_not_come_in_time_is_given_up() -> None:
    section = await read_section(asyncio.Event().wait(), "The rows", 0.01)
    assert (section.value, section.timed_out) == (None, True)
    assert section.problem == "The rows did not arrive within 0.01 seconds."


@pytest.mark.asyncio
async def test_a_part_that_fails_says_why_and_a_deadline_counts_as_too_long() -> None:
    section = await read_section(raising(DataLoss("bucket 1 is damaged")), "The rows")
    assert (section.problem, section.timed_out) == ("bucket 1 is damaged.", False)
    assert (await read_section(raising(DeadlineExceeded("no answer")), "The rows")).timed_out


@pytest.mark.asyncio
async def test_only_a_call_that_the_server_does_not_know_shows_that_the_server_is_old() -> None:
    damage = await read_section(raising(ProtocolViolation("chunk 3 has the wrong checksum")), "The rows")
    assert damage.problem == "chunk 3 has the wrong checksum."
    unknown = await read_section(raising(UnknownCall("it does not know this call")), "The explanation")
    assert unknown.problem == "The server is older than this console: upgrade it to see the explanation."


@pytest.mark.asyncio
async def test_an_error_of_time_that_is_not_the_limit_is_not_hidden() -> None:
    async def fail() -> None:
        raise TimeoutError("another one")

    with pytest.raises(TimeoutError, match="another one"):
        await read_section(fail(), "The rows", None)


@pytest.mark.asyncio
async def test_the_end_of_a_session_is_not_a_problem_of_a_part() -> None:
    with pytest.raises(Unauthenticated):
        await read_section(raising(Unauthenticated("the token is revoked")), "The rows")


def test_the_query_of_a_form_that_was_not_sent_shows_ten_rows_in_any_order() -> None:
    assert TableQuery.of(read_parameters(QUERY_PARAMETERS, [])) == TableQuery(
        where=None, order_by="", descending=True, limit=10
    )
    given = [("where", " score > 1 "), ("order_by", "score"), ("descending", "false"), ("limit", "3"), ("run", "rows")]
    assert TableQuery.of(read_parameters(QUERY_PARAMETERS, given)) == TableQuery(
        where="score > 1", order_by="score", descending=False, limit=3
    )
