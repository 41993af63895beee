"""Tokens that a function of the caller returns: when it is called, and what happens when it fails."""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import threading
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from aio_client import ScanSpec, TokenFile, Unauthenticated, UsageError, connect, sync
from aio_client._transport.authorization import FunctionAuthorization
from aio_client._transport.tokens import TokenFunction, expiry_of, token_source
from tests.unit.client.wants_tokens import WantsTokens, serving

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.asyncio

SECRET = "s3cr3t-Xq7"
SCAN = ScanSpec(table="game.scores")


class Counts:
    """Returns `token-1`, `token-2` and so on.

    Attributes:
        calls: How often it was called.
        error: What it raises instead.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.error: Exception | None = None

    def __call__(self) -> str:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return f"token-{self.calls}"


def web_token(**claims: object) -> str:
    parts = ({"alg": "none"}, claims, "signature")
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)


async def test_every_kind_of_function_is_called_once_for_many_calls() -> None:
    counts = Counts()

    async def asynchronous() -> str:
        return counts()

    async def named(_name: str) -> str:
        return counts()

    class IsAsync:
        async def __call__(self) -> str:
            return counts()

    functions: list[Callable[[], str | Awaitable[str]]] = [counts, asynchronous, partial(named, "x"), IsAsync()]
    functions.append(lambda: asynchronous())
    for function in functions:
        counts.calls = 0
        tokens = WantsTokens("token-1")
        async with serving(tokens) as url, connect(url, token=function) as client:
            assert counts.calls == 0
            await asyncio.gather(*(client.tables() for _ in range(5)), client.scan(SCAN).to_arrow())
            await client.wait_ready()
        assert (counts.calls, set(tokens.came)) == (1, {"Bearer token-1"})


async def test_a_function_that_blocks_runs_in_a_thread_and_one_that_does_not_in_the_event_loop() -> None:
    threads = []

    def blocking() -> str:
        threads.append(threading.current_thread())
        return SECRET

    async def asynchronous() -> str:
        return blocking()

    for function in (blocking, asynchronous):
        async with serving(WantsTokens(SECRET)) as url, connect(url, token=function) as client:
            await client.tables()
    assert threads[0] is not threading.main_thread()
    assert threads[1] is threading.main_thread()


async def test_a_blocking_client_calls_the_function() -> None:
    async with serving(WantsTokens("token-1")) as url:

        def list_tables() -> list[Any]:
            with sync.connect(url, token=Counts()) as client:
                return client.tables()

        assert await asyncio.to_thread(list_tables) == []


async def test_a_refused_token_is_replaced_and_the_call_made_again() -> None:
    counts, tokens = Counts(), WantsTokens("token-1")
    async with serving(tokens) as url, connect(url, token=counts) as client:
        await client.tables()
        calls: list[Callable[[], Awaitable[object]]] = [
            client.tables,
            client.scan(SCAN).to_arrow,
            client.wait_ready,
        ]
        for number, call in enumerate(calls, 1):
            assert counts.calls == number
            tokens.valid, tokens.came = {f"token-{number + 1}"}, []
            await call()
            assert tokens.came == [f"Bearer token-{number}", f"Bearer token-{number + 1}"]
    assert counts.calls == 4


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED])
async def test_a_server_that_refuses_every_token_is_asked_twice_at_most(code: grpc.StatusCode) -> None:
    counts, tokens = Counts(), WantsTokens()
    tokens.code = code
    most = 2 if code is grpc.StatusCode.UNAUTHENTICATED else 1
    async with serving(tokens) as url, connect(url, token=counts) as client:
        for call in (client.tables, client.scan(SCAN).to_arrow, client.scan(SCAN).as_of("pinned").to_arrow):
            tokens.came = []
            with pytest.raises(Exception, match="who are you") as caught:
                await call()
            assert caught.value.code == code.name  # type: ignore[attr-defined]
            assert len(tokens.came) == most


@pytest.mark.parametrize("is_async", [False, True])
async def test_the_exception_of_a_function_is_the_cause_of_the_error(is_async: bool) -> None:
    counts, tokens = Counts(), WantsTokens("token-3")
    counts.error = KeyError(SECRET)

    async def asynchronous() -> str:
        return counts()

    async with serving(tokens) as url, connect(url, token=asynchronous if is_async else counts) as client:
        for call in (client.tables, client.scan(SCAN).to_arrow):
            with pytest.raises(Unauthenticated, match="that was given as token raised KeyError") as caught:
                await call()
            assert caught.value.__cause__ is counts.error
            assert SECRET not in str(caught.value)
        assert tokens.came == []
        counts.error = None
        await client.tables()


async def test_a_function_that_does_not_return_is_given_up_in_time() -> None:
    async def waits() -> str:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async with serving(WantsTokens()) as url, connect(url, token=waits, attempt_timeout=0.05) as client:
        for call in (client.tables, client.scan(SCAN).to_arrow):
            with pytest.raises(Unauthenticated, match=r"has not returned within 0.05 s"):
                await call()


@pytest.mark.parametrize("returned", [None, 7, b"x", "", " ", f"{SECRET} ", f"{SECRET}é", SECRET * 2000])
async def test_what_cannot_be_a_token_is_refused_and_not_shown(returned: Any) -> None:
    async with serving(WantsTokens()) as url, connect(url, token=lambda: returned) as client:
        with pytest.raises(UsageError, match=r"must return a str|token returned (must|has)") as caught:
            await client.tables()
        assert SECRET not in "".join(traceback.format_exception(caught.value))


async def test_a_function_is_neither_shown_nor_pickled_and_is_not_called_without_tls_beyond_this_machine() -> None:
    counts = Counts()
    source = token_source(counts)
    assert (repr(source), source == token_source(counts)) == ("<a token of a function>", True)
    for each in (source, connect("localhost:1", token=counts)._config):
        with pytest.raises(UsageError, match=r"a function that was given as token is not pickled.*TokenFile"):
            pickle.dumps(each)
    with pytest.raises(UsageError, match="not encrypted"):
        connect("db.example.com:7070", token=counts)
    for wrong in (Counts, str, TokenFile):
        with pytest.raises(UsageError, match="or a function that returns a str, not a "):
            connect(token=wrong)  # type: ignore[arg-type]
    assert counts.calls == 0


async def test_the_end_of_a_web_token_is_read_without_its_signature() -> None:
    assert expiry_of(web_token(exp=1_700_000_000)) == 1_700_000_000
    assert expiry_of(web_token(exp=1.5, sub="é")) == 1.5
    without = [web_token(), web_token(exp="1"), web_token(exp=True), web_token(exp=10**400), web_token(exp=None)]
    nested = base64.urlsafe_b64encode(b"[" * 12_000).decode()
    for other in (
        *without,
        "",
        "a",
        "a.b.c",
        "a.é.c",
        ".." * 2,
        "x.W10.y",
        "x.MQ.y",
        "skv_12_ab.cd.ef",
        f"a.{nested}.b",
    ):
        assert expiry_of(other) is None


class Expiring:
    """Gives tokens that expire, and the authorization that asks for them, with clocks that a test sets."""

    def __init__(self, lifetime: float) -> None:
        self.now = 1000.0
        self.lifetime = lifetime
        self.calls = 0
        self.error: Exception | None = None
        self.called, self.release = asyncio.Event(), asyncio.Event()
        self.release.set()
        self.authorization = FunctionAuthorization(TokenFunction(self._token), 60, lambda: self.now, lambda: self.now)

    async def _token(self) -> str:
        self.calls += 1
        self.called.set()
        await self.release.wait()
        if self.error is not None:
            raise self.error
        return web_token(exp=self.now + self.lifetime, number=self.calls)


@pytest.mark.parametrize(("lifetime", "seconds_before"), [(3600, 60), (100, 20)])
async def test_a_web_token_is_replaced_before_its_end(lifetime: float, seconds_before: float) -> None:
    expiring = Expiring(lifetime)
    ends = expiring.now + lifetime
    await expiring.authorization.prepare()
    first = expiring.authorization.metadata()
    expiring.now = ends - seconds_before - 5
    await expiring.authorization.prepare()
    assert (expiring.calls, expiring.authorization.metadata()) == (1, first)
    expiring.now = ends - seconds_before + 1
    await expiring.authorization.prepare()
    assert expiring.calls == 2
    assert expiring.authorization.metadata() != first


async def test_while_the_next_token_is_awaited_or_cannot_be_had_the_last_one_is_used() -> None:
    expiring = Expiring(3600)
    await expiring.authorization.prepare()
    first = expiring.authorization.metadata()
    expiring.now += 3590
    expiring.called.clear()
    expiring.release.clear()
    waiting = asyncio.create_task(expiring.authorization.prepare())
    await expiring.called.wait()
    await expiring.authorization.prepare()
    assert expiring.authorization.metadata() == first
    expiring.error = OSError("away")
    expiring.release.set()
    await waiting
    await expiring.authorization.prepare()
    assert (expiring.calls, expiring.authorization.metadata()) == (2, first)
    expiring.now += 6
    expiring.error = None
    await expiring.authorization.prepare()
    assert expiring.calls == 3
    assert expiring.authorization.metadata() != first


async def test_a_token_that_has_expired_by_the_clock_of_this_machine_is_used_until_it_is_refused() -> None:
    expiring = Expiring(-500)
    for _ in range(3):
        await expiring.authorization.prepare()
    assert expiring.calls == 1
    refused = expiring.authorization.metadata()
    assert await expiring.authorization.renew(refused)
    assert expiring.calls == 2
    # Another call has had it replaced already.
    assert await expiring.authorization.renew(refused)
    assert expiring.calls == 2


async def test_a_caller_who_gives_up_leaves_the_function_to_the_next_one() -> None:
    expiring = Expiring(3600)
    expiring.release.clear()
    first, second = (asyncio.create_task(expiring.authorization.prepare()) for _ in range(2))
    await expiring.called.wait()
    first.cancel()
    expiring.release.set()
    await second
    assert first.cancelled()
    assert expiring.calls == 2
