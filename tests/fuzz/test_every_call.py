"""Every method of every service with random requests: each is answered or refused with a typed error."""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from hypothesis import given

from tests.fuzz.calls import Method, call, check_outcome, methods_of
from tests.fuzz.messages import make_request, requests
from tests.fuzz.world import FuzzedTables
from tests.support.examples import examples
from tests.support.processes import resident_bytes
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scankv.v1 import admin_pb2

MEBIBYTE = 1 << 20
CALLS = int(os.environ.get("SCANKV_FUZZED_CALLS", "1000000"))
"""How many calls `make soak` makes."""
AT_ONCE = 16
RENEWED_EVERY = 8
"""After how many methods tables and pins are created again, which takes as long as many calls."""


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("fuzzed") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def world(fuzzed: ServerProcess) -> FuzzedTables:
    return FuzzedTables(fuzzed.url)


def check_server(server: ServerProcess, world: FuzzedTables) -> None:
    """Asserts that a server works, holds nothing of past calls, and has logged no error."""
    assert server.process.poll() is None
    world.check_kept_rows()
    with Wire(server.url) as wire:
        wait_until(lambda: is_idle(wire.server()), "idle")
    assert not errors_in(server), (errors_in(server)[:9], server.log_path)
    assert resident_bytes(server.process.pid) < 1200 * MEBIBYTE


def errors_in(server: ServerProcess) -> list[str]:
    """Returns the entries of a server's log that are errors; an entry may have several lines."""
    entries = re.split(r"\n(?=\S+ \S+ (?:DEBUG|INFO|WARNING|ERROR) )", server.log)
    return [entry for entry in entries if " ERROR " in entry or "Traceback" in entry]


def is_idle(stats: admin_pb2.StatsResponse) -> bool:
    return not (stats.live_scans or stats.open_cursors or stats.request_bytes_in_flight or stats.waiting_calls)


@pytest.mark.breadth
def test_every_method_answers_or_refuses_random_requests(fuzzed: ServerProcess, world: FuzzedTables) -> None:
    methods = methods_of(fuzzed.url)
    assert len(methods) > 40
    with asyncio.Runner() as runner:
        channel = runner.run(open_channel(fuzzed.url))
        try:
            for number, method in enumerate(methods):
                if number % RENEWED_EVERY == 0:
                    world.renew()
                check_method(runner, channel, method, world)
                if method.path.endswith("DropTable"):
                    world.renew()
        finally:
            runner.run(channel.close(None))
    check_server(fuzzed, world)


def check_method(runner: asyncio.Runner, channel: grpc.aio.Channel, method: Method, world: FuzzedTables) -> None:
    @examples(4)
    @given(requests(method.request, world.known))
    def check(request: bytes) -> None:
        check_outcome(method, runner.run(call(channel, method, [request])))

    check()


async def open_channel(url: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(url, [("grpc.max_receive_message_length", 64 * MEBIBYTE)])


@pytest.mark.soak
def test_a_million_random_requests_leave_a_server_that_works(fuzzed: ServerProcess, world: FuzzedTables) -> None:
    seed = int(os.environ.get("SCANKV_FUZZ_SEED", random.randrange(2**32)))
    print(f"seed {seed}")  # noqa: T201  # a failure shows it
    reasons = asyncio.run(fuzz(fuzzed, world, random.Random(seed)))
    print(reasons.most_common())  # noqa: T201
    # A good share gets past the first checks.
    assert reasons["OK"] > sum(reasons.values()) / 5
    check_server(fuzzed, world)


async def fuzz(server: ServerProcess, world: FuzzedTables, source: random.Random) -> Counter[str]:
    """Makes many calls, some at once, and returns how many ended in which way."""
    methods, reasons = methods_of(server.url), Counter[str]()
    channel = await open_channel(server.url)
    left = iter(range(CALLS))

    async def caller() -> None:
        for number in left:
            if number % 2000 == 0:
                await asyncio.to_thread(world.renew)
            method = source.choice(methods)
            sent = [make_request(source, method.request, world.known) for _ in range(1 + number % 3)]
            outcome = await call(channel, method, sent)
            for response in outcome.responses:
                world.harvest(response)
            if method.path.endswith("DropTable") and outcome.refusal is None:
                await asyncio.to_thread(world.renew)
            reasons[outcome.refusal.reason if outcome.refusal else "OK"] += 1
            try:
                check_outcome(method, outcome)
            except AssertionError as error:
                request: Any = sent[0].hex()
                logged = "\n".join(errors_in(server)[-3:])
                raise AssertionError(f"{error}\nof the request {request}\n{logged}") from error

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(caller())
    await channel.close(None)
    return reasons
