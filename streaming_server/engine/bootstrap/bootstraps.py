"""All bootstraps of a server: begins, finds and ends them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from scankv.model.errors import BootstrapDiffers, InvalidRequest, TooManyBootstraps
from streaming_server.engine.bootstrap.bootstrap import Bootstrap, BootstrapHost, BootstrapTerms, bootstrap_lost
from streaming_server.engine.tasks.detached_tasks import DetachedTasks
from streaming_server.engine.tasks.reaper import Reaper

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.bootstrap.staged_runs import BootstrapRequest


_MOST_OPEN: Final = 100


class Bootstraps:
    """The bootstraps of a server. Bound to the event loop.

    Bootstraps outlive the server. A bootstrap whose table exists is kept as well, so that a client whose call was lost
    gets its result.

    Args:
        host: The server.
    """

    def __init__(self, host: BootstrapHost) -> None:
        self._host = host
        self._by_id: dict[str, Bootstrap] = {}
        self._beginning = asyncio.Lock()
        self._endings = DetachedTasks()
        self._reaper = Reaper(self._next_expiry, self._end_expired, host.clock)

    def start(self) -> None:
        """Starts to end bootstraps that expire."""
        self._reaper.start()

    async def close(self) -> None:
        """Ends the work on all bootstraps, which the next process continues when a client asks for it."""
        await self._reaper.close()
        for each in list(self._by_id.values()):
            await each.stop()
        await self._endings.join()

    def load(self, id_: str, terms: BootstrapTerms, service_micros: int) -> None:
        """Takes over a bootstrap of an earlier process, whose first call was at an instant of service time. Blocks."""
        bootstrap = Bootstrap(terms, self._host)
        if bootstrap.was_made and not terms.source:
            # A repeated commit finds the table.
            bootstrap.discard()
            return
        self._by_id[id_] = bootstrap
        clock = self._host.clock
        idle = (clock.service_micros() - max(service_micros, bootstrap.last_service_micros)) / 1e6
        # Service time begins again if its file is lost.
        bootstrap.expires = clock.monotonic() + terms.ttl - max(idle, 0.0)

    async def begin(self, terms: BootstrapTerms, *, from_scratch: bool = False) -> str:
        """Begins a bootstrap, and returns its id: the incarnation that the table will have.

        If an open bootstrap of the table has a named source, it is resumed, and its id is returned.

        Args:
            terms: What the client asks for.
            from_scratch: Whether such a bootstrap is aborted instead.

        Raises:
            InvalidRequest: The table has no primary key, or a changelog of what is written.
            BootstrapDiffers: The bootstrap to be resumed has other terms.
            TooManyBootstraps: 100 are open.
            DiskFull, DiskFailed: Its directory cannot be created.
        """
        definition = terms.definition
        _check_definition(definition)
        async with self._beginning:
            found = self._named(definition.name) if terms.source else None
            if found is not None and (from_scratch or self._is_gone(found)):
                await self.abort(found.definition.incarnation, definition.name)
                found = None
            if found is None:
                self._refuse_too_many()
                found = await self._host.executor.run(Bootstrap.create, terms, self._host)
                self._by_id[definition.incarnation] = found
            elif (difference := found.terms.difference(terms)) is not None:
                raise BootstrapDiffers(
                    f"a bootstrap of the table {definition.name} is open, and this one {difference}: resume it as it "
                    "was, or begin it again from scratch",
                    table=definition.name,
                )
            self._renew(found)
        return found.definition.incarnation

    def has_made(self, name: str, source: str) -> bool:
        """Whether a bootstrap of a named source has made a table of which the client may not know yet."""
        found = self._named(name) if source else None
        return found is not None and found.is_done and not self._is_gone(found)

    def _named(self, name: str) -> Bootstrap | None:
        """Returns the bootstrap of a table that can be resumed."""
        every = (each for each in self._by_id.values() if each.definition.name == name and each.terms.source)
        return next(every, None)

    def _is_gone(self, bootstrap: Bootstrap) -> bool:
        """Whether the commit has failed, or its table was dropped since."""
        definition = bootstrap.definition
        return bootstrap.is_done and not self._host.has_table(definition.name, definition.incarnation)

    def _refuse_too_many(self) -> None:
        if sum(not each.is_done for each in self._by_id.values()) >= _MOST_OPEN:
            raise TooManyBootstraps(f"the server has {_MOST_OPEN} open bootstraps, the limit: wait for others to end")

    def has(self, id_: str) -> bool:
        """Whether a bootstrap exists whose commit was not done when the process started."""
        return id_ in self._by_id and not self._by_id[id_].was_made

    def get(self, id_: str, table: str) -> Bootstrap:
        """Returns a bootstrap of a table, and lets it live for its time to live again. Raises BootstrapLost."""
        bootstrap = self._by_id.get(id_)
        if bootstrap is None or bootstrap.definition.name != table:
            raise bootstrap_lost(table)
        self._renew(bootstrap)
        return bootstrap

    async def stage(self, id_: str, table: str, request: BootstrapRequest, data: bytes, digest: bytes = b"") -> int:
        """Stages rows, and returns their number. Raises BootstrapLost, and as `Bootstrap.stage`."""
        return await self.get(id_, table).stage(request, data, digest)

    async def commit(self, id_: str, table: str, parts: Mapping[str, int], wait: float) -> Bootstrap:
        """Makes the table, and returns after `wait` seconds at the latest; `Bootstrap.is_done` says whether it exists.

        Raises:
            BootstrapLost: No such bootstrap is open, or it was aborted in the meantime.
            ScanKvError: As `BucketBuild.merge` and `BootstrapHost.place`; the bootstrap has ended.
        """
        bootstrap = self.get(id_, table)
        # The call may take longer than the time to live.
        self._renew(bootstrap, wait)
        task = bootstrap.begin_commit(parts)
        await asyncio.wait([task], timeout=wait)
        if task.cancelled():
            raise bootstrap.refusal()
        if task.done():
            task.result()
        return bootstrap

    async def abort(self, id_: str, table: str) -> None:
        """Ends a bootstrap, and removes its files, even if the caller is cancelled. A table that exists stays.

        Does nothing if it does not exist.
        """
        bootstrap = self._by_id.get(id_)
        if bootstrap is not None and bootstrap.definition.name == table:
            del self._by_id[id_]
            # A client that is interrupted closes its connection while the end waits for a request that is being staged.
            await asyncio.shield(self._endings.start(bootstrap.end()))

    def _renew(self, bootstrap: Bootstrap, call_seconds: float = 0.0) -> None:
        """Lets a bootstrap live for its time to live, from the end of a call that takes so long."""
        bootstrap.expires = self._host.clock.monotonic() + call_seconds + bootstrap.terms.ttl
        self._reaper.notify(bootstrap.expires)

    def _next_expiry(self) -> float | None:
        return min((each.expires for each in self._by_id.values()), default=None)

    async def _end_expired(self) -> None:
        now = self._host.clock.monotonic()
        for id_, each in list(self._by_id.items()):
            if each.expires <= now:
                await self.abort(id_, each.definition.name)


def _check_definition(definition: TableDefinition) -> None:
    """Raises InvalidRequest if a table cannot be bootstrapped."""
    if not definition.has_key:
        raise InvalidRequest(
            f"table {definition.name} would have no primary key, and a bootstrap sorts rows by key: create the table, "
            "and append the rows",
            table=definition.name,
        )
    if definition.options.changelog == "input":
        raise InvalidRequest(
            f'table {definition.name} would have changelog="input", which records every row that is written, and a '
            "bootstrap records none: create the table, and upsert the rows",
            table=definition.name,
        )
