"""Which connections without an authenticated call end."""

from __future__ import annotations

from streaming_server.services.connection_watch import overdue
from streaming_server.services.connections import OpenConnection


def connections(host: str, *since: float) -> list[OpenConnection]:
    return [OpenConnection(100 + number, (host, 1000 + number), each) for number, each in enumerate(since)]


def test_a_connection_ends_once_it_is_too_old() -> None:
    old, young = connections("a", 70.0, 70.1)
    assert overdue([young, old], 100.0, 30.0, 10) == [old]


def test_the_oldest_connections_of_an_address_that_has_too_many_end() -> None:
    flood, other = connections("a", 90, 91, 92, 93), connections("b", 80, 81)
    assert overdue([*flood, *other], 100.0, 30.0, 2) == flood[:2]


def test_new_connections_do_not_count_yet() -> None:
    assert overdue(connections("a", *[99.5] * 50), 100.0, 30.0, 2) == []
    assert len(overdue(connections("a", *[99.0] * 50), 100.0, 30.0, 2)) == 48
    assert len(overdue(connections("a", *[99.5] * 50), 100.0, 0.5, 2)) == 50
