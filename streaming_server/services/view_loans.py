"""Borrows pinned views from the worker processes that own their tables, by a call that lasts as long as the loan."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import grpc

from scankv.model.errors import Unavailable
from scankv.v1 import snapshot_pb2
from streaming_server.engine.snapshots.loans import Loan
from streaming_server.services.forwarding import RETRY_SECONDS, error_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from streaming_server.services.forwarding import Workers

_METHOD: Final = "scankv.v1.SnapshotService/UseSnapshot"

_GRANT_SECONDS: Final = 8.0
"""How long an owner may take to lend a view. Less than the attempt timeout of clients, so that their error names it."""


class ViewLoans:
    """Borrows views for one worker: a `Lender`. Bound to the event loop.

    Args:
        workers: The workers of the server.
        aliases: A directory that only this worker uses. It is emptied.
    """

    def __init__(self, workers: Workers, aliases: Path) -> None:
        self._workers = workers
        self.aliases = aliases
        # A process that was killed has left its links.
        shutil.rmtree(aliases, ignore_errors=True)
        aliases.mkdir()

    @asynccontextmanager
    async def borrow(self, table: str, snapshot_id: str) -> AsyncIterator[Loan]:
        """See `Lender.borrow`. The owner checks that the caller may read the table and the snapshot."""
        owner = self._workers.placement.owner_of(table)
        request = snapshot_pb2.UseSnapshotRequest(table=table, snapshot_id=snapshot_id)
        with self._workers.open(owner, _METHOD, request.SerializeToString()) as call:
            loan = await _wait_for_grant(call, owner, table)
            watching = asyncio.create_task(_watch(call, loan, owner, table))
            try:
                yield loan
            finally:
                watching.cancel()


async def _wait_for_grant(call: grpc.aio.UnaryStreamCall[bytes, bytes], owner: int, table: str) -> Loan:
    try:
        async with asyncio.timeout(_GRANT_SECONDS):
            granted = await call.read()
    except TimeoutError:
        raise Unavailable(
            f'worker {owner} of the server, which owns the table "{table}", does not answer: try again',
            retry_after=RETRY_SECONDS,
        ) from None
    except grpc.aio.AioRpcError as error:
        raise error_of(error, owner, f'the table "{table}"') from error
    if not isinstance(granted, bytes):
        raise _ended_error(owner, table)
    answer = snapshot_pb2.UseSnapshotResponse.FromString(granted)
    return Loan(answer.view_id, answer.table_incarnation)


async def _watch(call: grpc.aio.UnaryStreamCall[bytes, bytes], loan: Loan, owner: int, table: str) -> None:
    """Waits for the end of the call of a loan, which then is lost."""
    try:
        await call.read()
        loan.lose(_ended_error(owner, table))
    except grpc.aio.AioRpcError as error:
        loan.lose(error_of(error, owner, f'the table "{table}"'))


def _ended_error(owner: int, table: str) -> Unavailable:
    return Unavailable(
        f'worker {owner} of the server, which owns the table "{table}", no longer keeps the snapshot: try again',
        retry_after=RETRY_SECONDS,
    )
