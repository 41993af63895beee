"""The changes of one table, as streams."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from scankv.model.changes.log_positions import PositionKind, StartFrom
from streaming_server.engine.bucket.locking import lock_buckets, wait_until_durable
from streaming_server.engine.changelog.compacted_catch_up import DEFAULT_CATCH_UP, CompactedCatchUp
from streaming_server.engine.changelog.log_opening import LogOpening
from streaming_server.engine.changelog.range_opening import LiveRanges
from streaming_server.engine.columnar.base_adoption import adopt_bases
from streaming_server.scan.columnar.base_view import merge_deltas

if TYPE_CHECKING:
    from pathlib import Path

    from streaming_server.engine.bucket.table_state import TableState
    from streaming_server.engine.changelog.compacted_catch_up import CatchUpLimits
    from streaming_server.scan.changes.log_plan import LogPlan, OpenedLog
    from streaming_server.scan.changes.log_token import LogPosition


class TableChanges:
    """Opens streams of the changes of one table. Bound to the server's event loop.

    Args:
        table: The table.
        catch_up: When and how streams catch up with net changes.
    """

    def __init__(self, table: TableState, catch_up: CatchUpLimits = DEFAULT_CATCH_UP) -> None:
        self.table = table
        self._catch_up = catch_up
        # A crash may have left files behind.
        shutil.rmtree(self._spill_directory, ignore_errors=True)

    @property
    def _spill_directory(self) -> Path:
        return self.table.path / "catching-up"

    async def open(self, plan: LogPlan, owner: str, committed: LogPosition | None = None) -> OpenedLog:
        """Opens a stream of the changes of the buckets that a plan names, durable ones unless it asks for all.

        The stream may begin with the rows as of now. The caller closes its source.

        Args:
            plan: The requested stream.
            owner: Names the stream's retention hold on the changes.
            committed: The position of the stream's consumer. None: the stream has no consumer, or a new one.

        Raises:
            PositionExpired, PositionOutOfRange: The changes that it starts with do not exist.
            InvalidRequest, SchemaMismatch: A bucket or column does not exist; the resume token does not fit.
            DataLoss: A bucket is damaged.
        """
        table = self.table
        chosen = table.select_buckets(plan.buckets)
        if plan.start.kind is PositionKind.FULL and not table.definition.has_key:
            # The changes are all the rows that there are.
            plan = replace(plan, start=StartFrom.EARLIEST)
        if plan.start.kind is PositionKind.FULL:
            await adopt_bases(table, chosen)
        async with lock_buckets(chosen, latest=plan.latest) as opened:
            buckets = {live.number: (live, bucket) for live, bucket in opened}
            catching_up = CompactedCatchUp(
                {live.number: live for live, _ in opened},
                lambda: table.definition,
                table.codec.keys.encode_stored,
                self._catch_up if plan.lag_threshold is None else replace(self._catch_up, changes=plan.lag_threshold),
                self._spill_directory,
            )
            opening = LogOpening(
                plan,
                table.codec,
                buckets,
                owner,
                lambda: table.definition,
                committed,
                catching_up=catching_up,
                ranges=LiveRanges(table),
                clock=table.clock,
            )
            log = await opening.open()
            states = {number: bucket.state for number, (_, bucket) in buckets.items()}
            table.abort_on_close(log.source)
        try:
            if not plan.latest:
                await wait_until_durable(table.buckets, states)
            await merge_deltas(opening.bases, table.executor.run)
        except BaseException:
            log.source.close()
            raise
        return log
