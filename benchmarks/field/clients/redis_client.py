"""Redis: a hash for each row, and a sorted set as the index on `amount`."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from benchmarks import t4
from benchmarks.field.clients.field_client import (
    BELOW,
    PROJECTED,
    TOP,
    FieldClient,
    check_found,
    import_library,
    time_awaited,
    time_callers,
    time_calls,
)
from benchmarks.measure import Timing

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIPELINED: Final = 1000
_INDEX: Final = "by_amount"
_CHANGES: Final = "changes"


class RedisClient(FieldClient):
    """Calls one after the other are blocking (hiredis parses); concurrent ones are asynchronous, a connection each."""

    def open(self) -> None:
        host, port = self.address.split(":")
        self.address_of = {"host": host, "port": int(port)}
        self.redis = self.stack.enter_context(import_library("redis").Redis(**self.address_of))
        self.is_indexed = False

    def load(self) -> Timing:
        self.redis.flushall()
        return self.load_batches(t4.batches(self.rows, _PIPELINED), self._load)

    def scan(self) -> Timing:
        return self._read(lambda pipe, key: pipe.hgetall(key)).check_rows(self.rows)

    def project(self) -> Timing:
        return self._read(lambda pipe, key: pipe.hmget(key, PROJECTED)).check_rows(self.rows)

    def select(self) -> Timing:
        """Compares amounts in the client, which a system without an index on them cannot avoid."""
        started, found = time.perf_counter(), 0
        for kept in self._keys_below(BELOW):
            found += len(self._send(kept, lambda pipe, key: pipe.hgetall(key)))
        timing = Timing(found, time.perf_counter() - started).check_rows(self.expected_selected())
        return Timing(self.rows, timing.seconds)

    def count(self, seed: int) -> Timing:
        """Compares amounts in the client, as `select` does."""
        return self.time_count(seed, lambda below: sum(map(len, self._keys_below(below))))

    def call_nothing(self, calls: int) -> Timing:
        return time_calls(range(calls), lambda _: self.redis.ping())

    def get(self, calls: int, seed: int) -> Timing:
        return time_calls(self.ids(calls, seed), lambda key: check_found(self.redis.hgetall(key), key))

    def get_concurrently(self, calls: int, callers: int, seed: int) -> Timing:
        async def get(redis: Any, key: int) -> None:  # noqa: ANN401
            check_found(await redis.hgetall(key), key)

        return self._run_callers(self.ids(calls, seed), callers, get)

    def write(self, calls: int, seed: int) -> Timing:
        return time_calls(self._stored(calls, seed), lambda row: self.redis.hset(row[0], mapping=row[1]))

    def write_concurrently(self, calls: int, callers: int, seed: int) -> Timing:
        async def write(redis: Any, row: tuple[int, dict[str, Any]]) -> None:  # noqa: ANN401
            await redis.hset(row[0], mapping=row[1])

        return self._run_callers(self._stored(calls, seed), callers, write)

    def index(self) -> None:
        for batch in t4.batches(self.rows, _PIPELINED):
            self.redis.zadd(
                _INDEX, dict(zip(*(batch.column(name).to_pylist() for name in ("id", "amount")), strict=True))
            )

    def top_n(self, calls: int) -> Timing:
        return time_calls(range(calls), lambda _: self._top())

    def change(self, calls: int, seed: int) -> Timing:
        return asyncio.run(self._change(self._stored(calls, seed)))

    def _load(self, batch: Any) -> None:  # noqa: ANN401
        with self.redis.pipeline(transaction=False) as pipe:
            for row in batch.to_pylist():
                key, values = _stored(row)
                pipe.hset(key, mapping=values)
            pipe.execute()

    def _read(self, command: Any) -> Timing:  # noqa: ANN401
        started, rows = time.perf_counter(), 0
        for keys in self._keys():
            rows += len(self._send(keys, command))
        return Timing(rows, time.perf_counter() - started)

    def _keys(self) -> Iterator[list[bytes]]:
        """Yields the keys of all rows. SCAN may return a key twice while the hash table grows; here it does not."""
        cursor = None
        while cursor != 0:
            cursor, keys = self.redis.scan(cursor or 0, count=_PIPELINED, _type="HASH")
            yield keys

    def _keys_below(self, below: float) -> Iterator[list[bytes]]:
        for keys in self._keys():
            amounts = self._send(keys, lambda pipe, key: pipe.hget(key, "amount"))
            yield [key for key, amount in zip(keys, amounts, strict=True) if float(amount) < below]

    def _send(self, keys: list[bytes], command: Any) -> list[Any]:  # noqa: ANN401
        with self.redis.pipeline(transaction=False) as pipe:
            for key in keys:
                command(pipe, key)
            found: list[Any] = pipe.execute()
        return found

    def _top(self) -> None:
        keys = self.redis.zrange(_INDEX, 0, TOP - 1, desc=True)
        if len(self._send(keys, lambda pipe, key: pipe.hgetall(key))) != TOP:
            raise RuntimeError(f"the top-{TOP} must have {TOP} rows")

    def _stored(self, calls: int, seed: int) -> list[tuple[int, dict[str, Any]]]:
        return [_stored(row) for row in self.updates(calls, seed)]

    def _run_callers(self, arguments: list[Any], callers: int, call: Any) -> Timing:  # noqa: ANN401
        return asyncio.run(self._call(arguments, callers, call))

    async def _call(self, arguments: list[Any], callers: int, call: Any) -> Timing:  # noqa: ANN401
        clients = [self._new_async() for _ in range(callers)]
        for client in clients:
            await client.ping()
        calls = [lambda argument, client=client: call(client, argument) for client in clients]
        try:
            return await time_callers(arguments, calls)
        finally:
            for client in clients:
                await client.aclose()

    async def _change(self, rows: list[tuple[int, dict[str, Any]]]) -> Timing:
        writer, reader = self._new_async(), self._new_async()
        last = "$"

        async def change(row: tuple[int, dict[str, Any]]) -> None:
            nonlocal last
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(reader.xread({_CHANGES: last}, block=0))
                async with writer.pipeline(transaction=True) as pipe:
                    pipe.hset(row[0], mapping=row[1]).zadd(_INDEX, {row[0]: row[1]["amount"]})
                    await pipe.xadd(_CHANGES, {"id": row[0], **row[1]}).execute()
            ((_, ((last, _),)),) = waiting.result()

        try:
            # Not measured: with a first entry, the reader can name the position after which it waits.
            last = await writer.xadd(_CHANGES, {"id": -1})
            await reader.ping()
            return await time_awaited(rows, change)
        finally:
            await writer.aclose()
            await reader.aclose()

    def _new_async(self) -> Any:  # noqa: ANN401
        return import_library("redis.asyncio").Redis(**self.address_of, single_connection_client=True)


def _stored(row: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Returns the key and the fields of a row: numbers as text, as Redis keeps them."""
    return row["id"], {"name": row["name"], "amount": row["amount"], "ts": str(row["ts"])}
