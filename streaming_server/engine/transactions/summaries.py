"""The summaries of requests to tables with tablets, which the owner of the table stages after the fragments.

A request of a transaction to a table with tablets is staged as fragments, one at each tablet that it concerns. Then the
owner of the table stages its summary, which names the tablets and counts as the request. The commit proves that every
summary has its fragments, and that no fragment lacks its summary: see `PartSize`.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from streaming_server.engine.transactions.open_transaction import check_written_to
from streaming_server.storage.transactions.staging import StagedRequest, read_staged_request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.tasks.executor import StorageExecutor
    from streaming_server.engine.transactions.open_transaction import OpenTransaction
    from streaming_server.engine.transactions.request_staging import StagedRequestId


class RequestSummaries:
    """Stages the summaries of all open transactions. Bound to the event loop.

    Args:
        executor: Runs blocking work.
        renew: Returns the open transaction of a token with its time to live renewed, or raises TransactionLost or
            TransactionCommitted.
    """

    def __init__(self, executor: StorageExecutor, renew: Callable[[str], OpenTransaction]) -> None:
        self._executor = executor
        self._renew = renew

    @asynccontextmanager
    async def turn(self, request_id: StagedRequestId) -> AsyncIterator[OpenTransaction]:
        """Keeps other requests of a part from being staged at tablets for the length of the block.

        Yields the transaction. Raises TransactionLost or TransactionCommitted if it is no longer open.
        """
        transaction = self._renew(request_id.token)
        async with transaction.turns.setdefault(request_id.part, asyncio.Lock()):
            transaction.check_open()
            yield transaction

    async def find(self, transaction: OpenTransaction, request_id: StagedRequestId, table: str) -> StagedRequest | None:
        """Returns the summary of a request to a table. None: it is not staged.

        Raises:
            InvalidRequest: The request is not the next one of its part, or another one has its number.
            Unavailable: Tablets of this process have to discard fragments of another request of its number.
        """
        if transaction.part(request_id.part, request_id.sequence, table, request_id.fragment) is not None:
            return None
        part = transaction.parts[request_id.part]
        place = part.find(request_id.sequence, table, request_id.fragment)
        assert place is not None
        return await self._executor.run(read_staged_request, part.path, place)

    def check_lookup(self, request_id: StagedRequestId, table: TableDefinition) -> None:
        """Checks that a part can be looked up with what it has staged. Tablets to which it has not written cannot.

        Args:
            request_id: The part, and how many requests it has staged.
            table: The table.

        Raises:
            TransactionLost, TransactionCommitted: The transaction is no longer open.
            InvalidRequest: The part has another number of requests.
            TableNotFound: The table was dropped and created again since the part wrote to it.
        """
        transaction = self._renew(request_id.token)
        transaction.check_open()
        sizes = [(request_id.part, request_id.sequence)]
        check_written_to(transaction.select_parts(sizes, is_share=transaction.is_divided), table)

    async def add(self, transaction: OpenTransaction, request_id: StagedRequestId, summary: StagedRequest) -> None:
        """Stages a summary, once all fragments are staged.

        Raises:
            TransactionLost, TransactionCommitted: The transaction is no longer open.
        """
        async with transaction.lock:
            transaction.check_open()
            part = transaction.part(request_id.part, request_id.sequence, summary.table, request_id.fragment)
            if part is None:
                return
            numbered = replace(summary, sequence=request_id.sequence, fragment=request_id.fragment)
            await self._executor.run(part.append, numbered, b"")
            transaction.parts[request_id.part] = part
