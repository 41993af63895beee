"""Counts, aggregates and top-N of tables with tablets: joins the shares of the tablets as of one instant."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import grpc

from scankv.model.errors import Unavailable
from scankv.v1 import lookup_pb2, worker_pb2
from streaming_server.scan.queries.result_cache import CachedResult, Computation
from streaming_server.services.forwarding import RETRY_SECONDS
from streaming_server.services.isolation import reads_latest
from streaming_server.services.lookup import query_digest, wait_seconds
from streaming_server.services.query_request import bind_aggregate, bind_count, bind_top_n
from streaming_server.services.scan_request import bucket_numbers
from streaming_server.services.tablets.joined_shares import JoinedCount, JoinedGroups, JoinedRows, columns_to_ask
from streaming_server.services.tablets.owner_calls import HOLD_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from streaming_server.services.query_request import QueryRequest
    from streaming_server.services.tablets.tablet_calls import TabletCalls

_QUERY: Final = "scankv.v1.TabletService/QueryTablet"
_WATCH: Final = "scankv.v1.TabletService/WatchTablet"
_QUICK_BYTES: Final = 16 * 1024


class JoinedShares(Protocol):
    """Joins the shares of tablets, in the order of the tablets."""

    def add(self, share: worker_pb2.QueriedResult, state: bytes) -> None:
        """Adds the share of a tablet. May take long."""

    def respond(self, log_offsets: Mapping[int, int], version: bytes) -> tuple[bytes, bytes]:
        """Returns the serialized response, and further fields for the first caller. May take long."""


def joined_version(versions: Iterable[bytes]) -> bytes:
    """Returns the joint version of tablets that have these versions, in their order. Empty if one is unknown."""
    parts = list(versions)
    if not all(parts):
        return b""
    return hashlib.blake2b(b"".join(hashlib.blake2b(each).digest() for each in parts), digest_size=16).digest()


async def count(request: lookup_pb2.CountRequest, calls: TabletCalls) -> bytes:
    """Counts rows: see `LookupService.Count`."""
    return await _JoinedQuery(request, calls).answer()


async def aggregate(request: lookup_pb2.AggregateRequest, calls: TabletCalls) -> bytes:
    """Computes aggregates: see `LookupService.Aggregate`."""
    return await _JoinedQuery(request, calls).answer()


async def top_n(request: lookup_pb2.TopNRequest, calls: TabletCalls) -> bytes:
    """Returns the first rows: see `LookupService.TopN`."""
    return await _JoinedQuery(request, calls).answer()


@asynccontextmanager
async def one_instant(
    request: Any,  # noqa: ANN401  # a request with `snapshot`
    calls: TabletCalls,
    tablets: Iterable[int],
    *,
    is_part: bool = False,
) -> AsyncIterator[Mapping[int, str]]:
    """Yields the holds under which tablets open the views that a request reads. A pinned view needs no hold.

    Args:
        request: The request.
        calls: The tablets.
        tablets: The tablets that are read as of this instant.
        is_part: As for `TabletCalls.hold`.
    """
    if request.HasField("snapshot"):
        yield dict.fromkeys(tablets, "")
        return
    async with calls.hold(tablets, is_part=is_part) as holds:
        yield holds


async def versions_of(
    request: Any,  # noqa: ANN401  # a request with `snapshot`
    calls: TabletCalls,
    by_tablet: Mapping[int, list[int]],
) -> dict[int, bytes]:
    """Returns the current version of each tablet that a request reads, without reading rows.

    If they are the versions of an earlier view, nothing has changed since.

    Raises:
        Unavailable: The owner of a tablet does not answer.
    """
    requests = {tablet: _watch_request(request, calls, tablet, by_tablet[tablet]) for tablet in by_tablet}
    # A worker that does not answer now would not let its tablets be held, either. A snapshot is not held.
    seconds = None if request.HasField("snapshot") else HOLD_SECONDS
    answers = await calls.ask(_WATCH, requests, worker_pb2.WatchTabletResponse, seconds=seconds)
    return {tablet: answer.version for tablet, answer in answers.items()}


def _watch_request(
    request: Any,  # noqa: ANN401  # a request with `snapshot`
    calls: TabletCalls,
    tablet: int,
    buckets: list[int],
) -> worker_pb2.WatchTabletRequest:
    watched = worker_pb2.WatchTabletRequest(tablet=calls.tablets[tablet].name, buckets=buckets)
    if request.HasField("snapshot"):
        watched.snapshot.CopyFrom(request.snapshot)
    return watched


class _KnownVersion:
    """The latest version that a computation knows of."""

    def __init__(self, version: bytes) -> None:
        self.version = version

    def current(self) -> bytes:
        return self.version


class _JoinedQuery:
    """One query about a table with tablets.

    Its result is computed once for all callers who ask for it at the same time, and kept until the version changes, as
    `LookupService` does with other tables.
    """

    def __init__(self, request: QueryRequest, calls: TabletCalls) -> None:
        self._request = request
        self._calls = calls
        self._results, self._waiting = calls.memory.results, calls.memory.waiting
        numbers = request.buckets if isinstance(request, lookup_pb2.CountRequest) else ()
        calls.check_buckets(bucket_numbers(numbers))
        self._by_tablet = calls.buckets_by_tablet(numbers)
        # Joins shares, and is not used yet. None: `_compute` makes one.
        self._bound: JoinedShares | None = None

    async def answer(self) -> bytes:
        """Returns the serialized response. Raises the errors of the query."""
        request, results = self._request, self._results
        latest = reads_latest(request)
        since = request.if_changed_since if request.HasField("if_changed_since") else None
        request.ClearField("if_changed_since")
        clock = asyncio.get_running_loop().time
        until = clock() + wait_seconds(request, since, self._calls.context)
        query = query_digest(request)
        self._check(query)
        if latest:
            result = await self._compute(_KnownVersion(b""), Computation(lambda: None))
            results.computed += 1
            return await asyncio.to_thread(b"".join, (result.response, result.first_caller_fields))
        while True:
            self._calls.decide()
            versions = await versions_of(request, self._calls, self._by_tablet)
            current = joined_version(versions.values())
            if since is None or since != current:
                known = _KnownVersion(current)
                return await results.get_or_compute(query, known.current, partial(self._compute, known))
            left = until - clock()
            if left <= 0 or self._waiting.is_full:
                results.unchanged += 1
                return self._unchanged(since)
            await self._wait_for_change(versions, left)

    def _check(self, query: bytes) -> None:
        """Raises if the query does not fit the table."""
        definition = self._calls.definition
        if not self._results.is_valid(query, definition.incarnation, definition.schema.id):
            self._bound = self._bind()
            self._results.remember_valid(query, definition.incarnation, definition.schema.id)

    def _bind(self) -> JoinedShares:
        request, calls = self._request, self._calls
        if isinstance(request, lookup_pb2.CountRequest):
            bind_count(request, calls.definition)
            return JoinedCount()
        if isinstance(request, lookup_pb2.AggregateRequest):
            return JoinedGroups(bind_aggregate(request, calls.definition).result)
        bound = bind_top_n(request, calls.definition)
        return JoinedRows(bound.result, calls.table.state.codec.key_codec)

    def _unchanged(self, version: bytes) -> bytes:
        request = self._request
        if isinstance(request, lookup_pb2.CountRequest):
            return lookup_pb2.CountResponse(version=version, unchanged=True).SerializeToString()
        if isinstance(request, lookup_pb2.AggregateRequest):
            return lookup_pb2.AggregateResponse(version=version, unchanged=True).SerializeToString()
        return lookup_pb2.TopNResponse(version=version, unchanged=True).SerializeToString()

    async def _wait_for_change(self, versions: Mapping[int, bytes], seconds: float) -> None:
        """Waits until a tablet has another version than these, or the time is over."""
        requests = {}
        for tablet, version in versions.items():
            each = requests[tablet] = _watch_request(self._request, self._calls, tablet, self._by_tablet[tablet])
            each.known_version, each.wait_millis = version, max(1, int(seconds * 1000))
        watching = [
            asyncio.create_task(self._calls.ask(_WATCH, {tablet: each}, worker_pb2.WatchTabletResponse))
            for tablet, each in requests.items()
        ]
        try:
            with self._waiting.count():
                done, _ = await asyncio.wait(watching, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
        self._waiting.check_open()
        for task in done:
            task.result()

    async def _compute(self, known: _KnownVersion, computation: Computation) -> CachedResult:
        """Computes the result. May last longer than the call that has begun it."""
        calls, joined = self._calls, self._bound or self._bind()
        self._bound = None
        offsets: dict[int, int] = {}
        async with AsyncExitStack() as stack:
            computation.begin_view()
            async with one_instant(self._request, calls, self._by_tablet) as holds:
                parts = {
                    tablet: stack.enter_context(
                        calls.open(_QUERY, tablet, self._share_request(tablet), holds[tablet], outlasts=True)
                    )
                    for tablet in self._by_tablet
                }
                versions = [await self._version_of(tablet, part) for tablet, part in parts.items()]
            version = joined_version(versions)
            computation.set_view_version(version)
            for tablet, part in parts.items():
                share, state = await self._rest_of(tablet, part)
                offsets |= share.log_offsets
                await _off_loop(len(state), partial(joined.add, share, state))
        known.version = version
        response, cost = await asyncio.to_thread(joined.respond, offsets, version)
        return CachedResult(version, response, cost)

    def _share_request(self, tablet: int) -> worker_pb2.QueryTabletRequest:
        request, name = self._request, self._calls.tablets[tablet].name
        asked = worker_pb2.QueryTabletRequest()
        if isinstance(request, lookup_pb2.CountRequest):
            asked.count.CopyFrom(request)
            asked.count.table, asked.count.buckets[:] = name, self._by_tablet[tablet]
        elif isinstance(request, lookup_pb2.AggregateRequest):
            asked.aggregate.CopyFrom(request)
            asked.aggregate.table = name
        else:
            asked.top_n.CopyFrom(request)
            asked.top_n.table = name
            if request.HasField("columns"):
                asked.top_n.columns.names[:] = columns_to_ask(
                    request.columns.names, [request.by, *self._calls.definition.primary_key]
                )
        return asked

    async def _version_of(self, tablet: int, part: grpc.aio.UnaryStreamCall[bytes, bytes]) -> bytes:
        """Returns the version of the view of a tablet, which is open then."""
        try:
            message = await part.read()
        except grpc.aio.AioRpcError as error:
            raise self._calls.error_of(tablet, error) from error
        if not isinstance(message, bytes):
            raise _incomplete()
        return worker_pb2.QueryTabletResponse.FromString(message).view.version

    async def _rest_of(
        self, tablet: int, part: grpc.aio.UnaryStreamCall[bytes, bytes]
    ) -> tuple[worker_pb2.QueriedResult, bytes]:
        """Returns the share of a tablet."""
        state: list[bytes] = []
        async for data in self._calls.messages(tablet, part):
            message = worker_pb2.QueryTabletResponse.FromString(data)
            if message.WhichOneof("message") == "result":
                return message.result, b"".join(state)
            state.append(message.state)
        raise _incomplete()


def _incomplete() -> Unavailable:
    return Unavailable("a stream of a worker of the server has ended early: try again", retry_after=RETRY_SECONDS)


async def _off_loop(size: int, work: partial[None]) -> None:
    """Runs work on so many bytes, in a thread unless they are few."""
    if size <= _QUICK_BYTES:
        work()
    else:
        await asyncio.to_thread(work)
