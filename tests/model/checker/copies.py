"""Operations with copies that follow a table while other steps happen: mirrors, and watches of the first rows."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from anyio.from_thread import start_blocking_portal

from aio_client import ScanKvError
from aio_client import connect as connect_async
from aio_client.mirror import Mirror, MirrorState, mirror
from tests.model.checker.drawing import KEYED, table_of
from tests.model.checker.model import KEY, CheckerColumn, Shown, exact
from tests.model.checker.operation import Arguments, define
from tests.model.checker.predicates import Where, draw_where, fits_columns, matches, names_of, to_expression
from tests.model.checker.queries import first_rows
from tests.model.checker.world import Kept, by_key, compare

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from anyio.from_thread import BlockingPortal

    from aio_client import Client
    from aio_client.sync import TopNWatch
    from tests.model.checker.model import CheckerTable
    from tests.model.checker.world import CheckerWorld

_T = TypeVar("_T")
_SECONDS: Final = 60.0
_PATIENCE_SECONDS: Final = 3600.0
"""How long a follower may get nothing. Each of many steps may end the server before its next heartbeat."""
_MOST: Final = 3


class Loop:
    """An asyncio client in a thread of its own, for what the blocking client does not have."""

    def __init__(self, world: CheckerWorld) -> None:
        self._portal: BlockingPortal = world.closing.enter_context(start_blocking_portal())
        opened = self._portal.wrap_async_context_manager(
            connect_async(world.server.url, operation_timeout=_PATIENCE_SECONDS)
        )
        self.client: Client = world.closing.enter_context(opened)

    def run(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Calls a coroutine function, and waits for its result."""

        async def within() -> _T:
            async with asyncio.timeout(_SECONDS):
                return await call()

        return self._portal.call(within)


@dataclass
class _Copy:
    """A mirror, or what is left of it.

    Attributes:
        where: The rows that it copies.
        columns: The columns that the table had.
        mirror: The mirror while it is open.
        state: What another one continues from.
    """

    where: Where | None
    columns: tuple[CheckerColumn, ...]
    mirror: Mirror | None = None
    state: MirrorState | None = None

    async def open(self, client: Client, name: str) -> Mirror:
        """Opens it, or continues from its state."""
        opened = mirror(await client.table(name), where=to_expression(self.where), state=self.state)
        self.mirror = await opened.__aenter__()
        return self.mirror

    async def close(self) -> None:
        """Closes it."""
        if self.mirror is not None:
            await self.mirror.aclose()


def _draw_mirror(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, KEYED)
    if table is None or sum(kept.kind == "mirror" for kept in world.kept.values()) >= _MOST:
        return None
    where = draw_where(table.columns, random) if random.random() < 0.5 else None
    return {"table": table.name, "where": where, "as": f"m{world.next_number()}"}


@define("open_mirror", 1.5, _draw_mirror)
def _open_mirror(world: CheckerWorld, arguments: Arguments) -> None:
    table, where = world.tables.get(arguments["table"]), arguments["where"]
    if table is None or not table.has_changes or not fits_columns(where, table.columns):
        return
    loop, copy = loop_of(world), _Copy(where, table.columns)
    loop.run(lambda: copy.open(loop.client, table.name))
    world.kept[arguments["as"]] = Kept("mirror", table.number, table.name, copy)
    world.record("open_mirror", table)


def loop_of(world: CheckerWorld) -> Loop:
    """Returns the loop of a world."""
    if "loop" not in world.kept:
        world.kept["loop"] = Kept("loop", 0, "", Loop(world))
    loop: Loop = world.kept["loop"].value
    return loop


def _draw_kept(kind: str, world: CheckerWorld, random: Random) -> Arguments | None:
    names = [name for name, kept in world.kept.items() if kept.kind == kind]
    return {"kept": random.choice(names), "leave": random.random() < 0.4} if names else None


@define("read_mirror", 2.5, lambda world, random: _draw_kept("mirror", world, random))
def _read_mirror(world: CheckerWorld, arguments: Arguments) -> None:
    kept = world.kept.get(arguments["kept"])
    if kept is None:
        return
    copy: _Copy = kept.value
    table, loop = world.tables.get(kept.name), loop_of(world)
    is_same = table is not None and table.number == kept.table
    is_lost = not is_same or kept.is_lost
    altered = {True} if table is None or is_lost else table.is_altered(copy.columns, names_of(copy.where))
    try:
        found = loop.run(lambda: _follow(world, loop, kept, copy, leave=arguments["leave"]))
    except (ScanKvError, KeyError):
        # It tells its reader that it cannot follow the table any more.
        if True not in altered:
            raise
        found = None
    if found is None or altered == {True} or table is None:
        del world.kept[arguments["kept"]]
        loop.run(copy.close)
        return
    _compare(table, copy, *found)
    world.record("read_mirror", table)


async def _follow(
    world: CheckerWorld, loop: Loop, kept: Kept, copy: _Copy, *, leave: bool
) -> tuple[list[Shown], list[str]]:
    """Returns the rows of a mirror that has followed the table until now, and their columns."""
    opened = copy.mirror or await copy.open(loop.client, kept.name)
    table = await loop.client.table(kept.name)
    await opened.wait_for(await table.log_offsets())
    rows = opened.to_arrow()
    if leave:
        copy.state = opened.state()
        await copy.close()
        copy.mirror = None
    return rows.to_pylist(), rows.schema.names


def _compare(table: CheckerTable, copy: _Copy, rows: list[Shown], names: list[str]) -> None:
    """Compares the rows of a mirror, which may have rows that have expired, and names from before the last change."""
    is_current = names == [*table.key, *(column.name for column in table.columns)]
    found: dict[int, Any] = by_key(rows)
    expected = {key: row for key, row in table.view().shown().items() if matches(copy.where, row)}
    expected |= {key: row for key, row in table.remains().items() if key in found and matches(copy.where, row)}
    if is_current:
        compare(found, expected)
    assert found.keys() == expected.keys(), f"the mirror has {sorted(found)}, the table {sorted(expected)}"


@dataclass
class _KeptWatch:
    """A watch of the first rows.

    Attributes:
        watch: The watch.
        asked: What it watches.
        columns: The columns that the table had.
        last: The rows that it returned last.
    """

    watch: TopNWatch
    asked: Arguments
    columns: tuple[CheckerColumn, ...]
    last: list[Shown] | None = None


def _draw_watch(world: CheckerWorld, random: Random) -> Arguments | None:
    table = table_of(world, random, KEYED)
    if table is None or sum(kept.kind == "watch" for kept in world.kept.values()) >= _MOST:
        return None
    return {
        "table": table.name,
        "where": draw_where(table.columns, random) if random.random() < 0.5 else None,
        "by": random.choice([KEY, *(column.name for column in table.columns * 4)]),
        "n": random.choice([1, 3, 10]),
        "descending": random.random() < 0.5,
        "as": f"n{world.next_number()}",
    }


@define("watch_top_n", 1, _draw_watch)
def _watch_top_n(world: CheckerWorld, arguments: Arguments) -> None:
    table, where, by = world.tables.get(arguments["table"]), arguments["where"], arguments["by"]
    if table is None or not fits_columns(where, table.columns) or by not in {KEY, *(c.name for c in table.columns)}:
        return
    watch = world.table(table.name).watch_top_n(
        arguments["n"], by, to_expression(where), descending=arguments["descending"], every=0.1
    )
    world.kept[arguments["as"]] = Kept("watch", table.number, table.name, _KeptWatch(watch, arguments, table.columns))
    world.record("watch_top_n", table)


@define("read_watch", 2, lambda world, random: _draw_kept("watch", world, random))
def _read_watch(world: CheckerWorld, arguments: Arguments) -> None:
    kept = world.kept.get(arguments["kept"])
    if kept is None:
        return
    watched: _KeptWatch = kept.value
    table, asked = world.tables.get(kept.name), watched.asked
    is_same = table is not None and table.number == kept.table
    used = [asked["by"], *names_of(asked["where"])]
    if table is None or not is_same or table.is_altered(watched.columns, used) != {False} or table.ttl is not None:
        del world.kept[arguments["kept"]]
        watched.watch.close()
        return
    rows = [row for row in table.view().in_order() if matches(asked["where"], row)]
    expected = first_rows(rows, asked["by"], asked["n"], descending=asked["descending"], ties="key")
    ending = threading.Timer(_SECONDS, watched.watch.close)
    ending.start()
    try:
        while exact(watched.last) != exact(expected):
            watched.last = next(watched.watch).rows.to_pylist()
    except StopIteration:
        raise AssertionError(f"the watch has {watched.last}, and never {expected}") from None
    finally:
        ending.cancel()
    world.record("read_watch", table)
