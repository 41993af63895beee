"""Which connections without an authenticated call end."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
import sys
import tempfile
from contextlib import ExitStack
from typing import NoReturn

import pytest

from scankv.model.networks import network_of
from streaming_server.services.connection_watch import ConnectionWatch, overdue
from streaming_server.services.connections import OpenConnection, close_all, find_connections, received_bytes


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


def test_new_connections_count_and_soon_end_while_few_are_left() -> None:
    flood = connections("a", *[99.8] * 50, *[99.95] * 50)
    assert overdue(flood, 100.0, 30.0, 25, has_few_left=True) == flood[:50]
    assert len(overdue(flood, 100.1, 30.0, 25, has_few_left=True)) == 75


def test_connections_with_a_call_in_authentication_do_not_count_and_end_last() -> None:
    flood = connections("a", 90, 91, 92, 93)
    slow = {flood[0].address, flood[1].address}
    assert overdue(flood, 100.0, 30.0, 2, authenticating=slow) == []
    assert overdue(flood, 100.0, 30.0, 2, authenticating=slow, has_few_left=True) == flood[2:]
    assert overdue(flood, 121.0, 30.0, 9, authenticating=slow) == []
    assert overdue(flood, 151.0, 30.0, 9, authenticating=slow)[:2] == flood[:2]


def test_the_addresses_of_one_ipv6_network_count_together() -> None:
    flood = [OpenConnection(n, (f"2001:db8::{n:x}", 1000), 90.0 + n) for n in range(4)]
    other = OpenConnection(9, ("2001:db8:0:1::1", 1000), 80.0)
    assert overdue([*flood, other], 100.0, 30.0, 2) == flood[:2]


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("a name", "a name"),
    ],
)
def test_one_host_of_ipv4_and_one_network_of_ipv6_count_as_one(host: str, network: str) -> None:
    assert network_of(host) == network


def test_a_connection_is_found_after_a_time_without_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        accepted, address = listener.accept()
        ports = {listener.getsockname()[1]}

        def fail(_: int) -> NoReturn:
            raise OSError(errno.EMFILE, "too many open files")

        with accepted, monkeypatch.context() as patched:
            patched.setattr(os, "dup", fail)
            known = find_connections({}, ports, 1.0)
            patched.undo()
            found = find_connections(known, ports, 2.0).values()
            assert [each.address for each in found if each is not None] == [address[:2]]
            assert client.fileno() >= 0


def test_an_unwanted_connection_is_not_looked_for_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = ConnectionWatch(30.0, 100, 1000)
    monkeypatch.setattr(os, "listdir", lambda _: pytest.fail("looked at all files"))
    watch.end_unauthenticated("ipv4:127.0.0.1:1")
    watch.record_call("ipv4:127.0.0.1:2")
    watch.end_unauthenticated("ipv4:127.0.0.1:2")
    assert watch._unwanted == {("127.0.0.1", 1)}


def test_a_number_that_is_no_socket_any_more_leaves_no_descriptor_open() -> None:
    with tempfile.TemporaryFile() as file:
        before = len(os.listdir("/dev/fd"))
        stale = OpenConnection(file.fileno(), ("127.0.0.1", 1), 0.0)
        assert received_bytes(stale) is None
        assert close_all([stale]) == 0
        assert len(os.listdir("/dev/fd")) == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all addresses of 127.0.0.0/8, and counts the bytes")
@pytest.mark.asyncio
async def test_connections_from_one_port_to_two_addresses_count_and_end_together() -> None:
    with ExitStack() as stack:
        first = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        second = stack.enter_context(socket.create_server(("127.0.0.2", first.getsockname()[1])))
        clients = [stack.enter_context(socket.socket()) for _ in range(2)]
        for client, listener in zip(clients, (first, second), strict=True):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            client.bind(("127.0.0.9", 0) if client is clients[0] else clients[0].getsockname())
            client.connect(listener.getsockname())
        accepted = [stack.enter_context(listener.accept()[0]) for listener in (first, second)]
        for number, (client, connection) in enumerate(zip(clients, accepted, strict=True)):
            client.sendall(b"x" * 10 ** (number + 1))
            assert len(connection.recv(10 ** (number + 1), socket.MSG_WAITALL)) == 10 ** (number + 1)
        peer = "ipv4:{}:{}".format(*clients[0].getsockname())
        watch = ConnectionWatch(30.0, 100, 1000)
        watch.ports = {first.getsockname()[1]}
        await watch._check()
        assert watch.received_bytes(peer) == 110
        watch.end(peer)
        assert watch.ended == 2
        assert [client.recv(1) for client in clients] == [b"", b""]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts what a connection has received")
@pytest.mark.asyncio
async def test_another_connection_from_the_port_of_an_earlier_one_is_not_taken_for_it() -> None:
    watch = ConnectionWatch(30.0, 100, 1000)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        watch.ports = {listener.getsockname()[1]}

        def connect(port: int) -> tuple[socket.socket, socket.socket]:
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.bind(("127.0.0.1", port))
            client.connect(listener.getsockname())
            return client, listener.accept()[0]

        client, accepted = connect(0)
        port = client.getsockname()[1]
        await watch._check()
        client.close()
        with socket.socket() as takes_the_descriptor:
            accepted.close()
            client, accepted = connect(port)
            assert takes_the_descriptor.fileno() != -1
            running = asyncio.create_task(watch.run())
            await watch.wait_until_seen(f"ipv4:127.0.0.1:{port}")
            client.sendall(b"x")
            assert accepted.recv(1) == b"x"
            assert watch.received_bytes(f"ipv4:127.0.0.1:{port}") == 1
            running.cancel()
            client.close()
            accepted.close()
