"""All bootstraps of a server: begins, finds and ends them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from scankv.model.errors import InvalidRequest, TooManyBootstraps
from streaming_server.engine.bootstrap.bootstrap import Bootstrap, BootstrapHost, BootstrapTerms, bootstrap_lost
from streaming_server.engine.tasks.detached_tasks import DetachedTasks
from streaming_server.engine.tasks.reaper import Reaper

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streaming_server.storage.bootstrap.staged_runs import BootstrapRequest


_MOST_OPEN: Final = 100


class Bootstraps:
    """The bootstraps of a server. Bound to the event loop.

    A bootstrap whose table exists is kept as well, so that a client whose call was lost gets its result.

    Args:
        host: The server.
    """

    def __init__(self, host: BootstrapHost) -> None:
        self._host = host
        self._by_id: dict[str, Bootstrap] = {}
        self._endings = DetachedTasks()
        self._reaper = Reaper(self._next_expiry, self._end_expired, host.clock)

    def start(self) -> None:
        """Starts to end bootstraps that expire."""
        self._reaper.start()

    async def close(self) -> None:
        """Ends all bootstraps."""
        await self._reaper.close()
        for id_, each in list(self._by_id.items()):
            await self.abort(id_, each.definition.name)
        await self._endings.join()

    def begin(self, terms: BootstrapTerms) -> str:
        """Begins a bootstrap, and returns its id: the incarnation that the table will have.

        Raises:
            InvalidRequest: The table has no primary key, or a changelog of what is written.
            TooManyBootstraps: 100 are open.
            DiskFull, DiskFailed: Its directory cannot be created.
        """
        definition = terms.merger.definition
        if not definition.has_key:
            raise InvalidRequest(
                f"table {definition.name} would have no primary key, and a bootstrap sorts rows by key: create the "
                "table, and append the rows",
                table=definition.name,
            )
        if definition.options.changelog == "input":
            raise InvalidRequest(
                f'table {definition.name} would have changelog="input", which records every row that is written, and a '
                "bootstrap records none: create the table, and upsert the rows",
                table=definition.name,
            )
        if sum(not each.is_done for each in self._by_id.values()) >= _MOST_OPEN:
            raise TooManyBootstraps(f"the server has {_MOST_OPEN} open bootstraps, the limit: wait for others to end")
        bootstrap = self._by_id[definition.incarnation] = Bootstrap(terms, self._host)
        self._renew(bootstrap)
        return definition.incarnation

    def has(self, id_: str) -> bool:
        """Whether a bootstrap exists. It may be done."""
        return id_ in self._by_id

    def get(self, id_: str, table: str) -> Bootstrap:
        """Returns a bootstrap of a table, and lets it live for its time to live again. Raises BootstrapLost."""
        bootstrap = self._by_id.get(id_)
        if bootstrap is None or bootstrap.definition.name != table:
            raise bootstrap_lost(table)
        self._renew(bootstrap)
        return bootstrap

    async def stage(self, id_: str, table: str, request: BootstrapRequest, data: bytes) -> int:
        """Stages rows, and returns their number. Raises BootstrapLost, and as `Bootstrap.stage`."""
        return await self.get(id_, table).stage(request, data)

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
            raise bootstrap_lost(table)
        if task.done():
            task.result()
        return bootstrap

    async def abort(self, id_: str, table: str) -> None:
        """Ends a bootstrap, unless its table exists, and removes its files, even if the caller is cancelled.

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
