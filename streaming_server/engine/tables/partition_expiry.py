"""Drops the partitions whose time to live is over."""

from __future__ import annotations

import datetime as dt
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from scankv.model.errors import ScanKvError
from streaming_server.engine.tasks.background import Background, repeat

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from scankv.model.tables.partition_ttl import PartitionRule
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.clock import ServerClock
    from streaming_server.engine.table.live_table import LiveTable
    from streaming_server.engine.table.table_partitions import PartitionStats

MOST_AT_ONCE: Final = 1000
"""The most partitions of one table that are dropped at one instant. The definition of the table has all of them."""

_log: Final = logging.getLogger(__name__)


class _Checked(NamedTuple):
    """What the last check of a table has found: for which rule, at which offsets, and when the next one expires."""

    rule: PartitionRule
    offsets: Mapping[int, int | None]
    next_expiry: dt.datetime | None


class PartitionExpiry(Background):
    """Drops expired partitions, by commit time. Bound to the event loop.

    A table is opened for it only if something was written since the last check, or if a partition has expired. So idle
    buckets stay closed.

    Args:
        definitions: Returns the definitions of all tables.
        table: Returns a table.
        drop: Drops the partitions of a table that begin with some prefixes.
        seconds: The interval of the checks.
        clock: The server's clock.
    """

    def __init__(
        self,
        definitions: Callable[[], Iterable[TableDefinition]],
        table: Callable[[str], LiveTable],
        drop: Callable[[str, Sequence[bytes]], Awaitable[Sequence[PartitionStats]]],
        *,
        seconds: float,
        clock: ServerClock,
    ) -> None:
        self._definitions = definitions
        self._table = table
        self._drop = drop
        self._clock = clock
        self._checked: dict[str, _Checked] = {}
        super().__init__(partial(repeat, seconds, self._check_all))

    async def _check_all(self) -> None:
        rules = [(each.name, each.partition_rule) for each in self._definitions()]
        for name, rule in rules:
            if rule is None:
                self._checked.pop(name, None)
                continue
            try:
                await self.check(name, rule)
            except ScanKvError as error:
                _log.warning("expired partitions of %s: %s", name, error.message)
            except Exception:
                _log.exception("expired partitions of %s", name)

    async def check(self, name: str, rule: PartitionRule) -> None:
        """Drops the expired partitions of one table. Raises the errors of `TablePartitions.drop`, and TableNotFound."""
        table = self._table(name)
        now = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=self._clock.commit_micros())
        before, offsets = self._checked.get(name), _offsets_of(table)
        if before is not None and before.rule == rule and before.offsets == offsets:
            if before.next_expiry is None or now < before.next_expiry:
                return
        expiries = self._expiries(table.definition, rule, await table.partitions.list_partitions())
        expired = sorted(prefix for prefix, time in expiries.items() if time <= now)[:MOST_AT_ONCE]
        if expired:
            dropped = await self._drop(name, expired)
            rows = [each.rows for each in dropped]
            count = "an unknown number of" if None in rows else f"{sum(each for each in rows if each is not None):,}"
            _log.info("dropped %d expired partitions of %s with %s rows", len(dropped), name, count)
            self._checked.pop(name, None)  # More may have expired, or may have been written.
            return
        self._checked[name] = _Checked(rule, offsets, min(expiries.values(), default=None))

    def _expiries(
        self, definition: TableDefinition, rule: PartitionRule, partitions: Iterable[PartitionStats]
    ) -> dict[bytes, dt.datetime]:
        """Returns when partitions expire. Logs those that never do, because they have no time."""
        assert definition.partitioning is not None
        expiries, without = {}, []
        for each in partitions:
            expiry = rule.expiry_of(definition.partitioning.decode(each.prefix))
            if expiry is None:
                without.append(each)
            else:
                expiries[each.prefix] = expiry
        if without:
            # The values are data of rows, which the log must not have.
            _log.warning(
                "%d partitions of %s never expire, because their values of the column %s are no times in the format "
                "%s: `scankv partitions list` shows them",
                len(without),
                definition.name,
                rule.column,
                rule.format,
            )
        return expiries


def _offsets_of(table: LiveTable) -> dict[int, int | None]:
    """Returns the next offset of each bucket; None for a bucket that was never opened."""
    states = {live.number: live.state for live in table.buckets}
    return {number: None if state is None else state.log_offset for number, state in states.items()}
