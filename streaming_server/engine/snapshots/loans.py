"""Loans of pinned views between the worker processes of a server: what the lender keeps, and what the borrower knows.

Only the owner of a table knows which of its snapshots exist, and only the owner changes or removes files of the table.
Another process reads a view of the table within a loan. The lender keeps the view for the length of the loan, as it
does for a scan of its own. It ends a loan early only if the table is dropped or the server stops. A loan ends with
either process.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from scankv.model.errors import ScanKvError


class LentView:
    """A loan at the lender. Bound to the event loop.

    Attributes:
        view_id: The view.
        incarnation: The incarnation of its table.
    """

    def __init__(self, view_id: str, incarnation: str) -> None:
        self.view_id = view_id
        self.incarnation = incarnation
        self._ended: asyncio.Future[ScanKvError] = asyncio.get_running_loop().create_future()

    def abort(self, error: ScanKvError) -> None:
        """Ends the loan, because the view has ended."""
        if not self._ended.done():
            self._ended.set_result(error)

    async def wait_ended(self) -> ScanKvError:
        """Waits until the view has ended. Returns the reason."""
        return await self._ended


class Loan:
    """A loan at the borrower. Bound to the event loop.

    Attributes:
        view_id: The view.
        incarnation: The incarnation of its table.
    """

    def __init__(self, view_id: str, incarnation: str) -> None:
        self.view_id = view_id
        self.incarnation = incarnation
        self._lost: ScanKvError | None = None
        self._listener: Callable[[ScanKvError], None] | None = None

    def lose(self, error: ScanKvError) -> None:
        """Records that the lender no longer keeps the view."""
        self._lost = error
        if self._listener is not None:
            self._listener(error)

    def on_lost(self, listener: Callable[[ScanKvError], None]) -> None:
        """Calls the listener with the reason when the loan is lost; at once if it is lost already."""
        self._listener = listener
        if self._lost is not None:
            listener(self._lost)


class Lender(Protocol):
    """Borrows views from the owners of their tables.

    Attributes:
        aliases: A directory of this process for links to the files of borrowed views.
    """

    aliases: Path

    def borrow(self, table: str, snapshot_id: str) -> AbstractAsyncContextManager[Loan]:
        """Borrows the view of a snapshot for the length of the block, in the name of the caller of the current call.

        Raises:
            SnapshotLost, TableNotFound, InvalidRequest, PermissionDenied: As the owner raises them.
            Unavailable: The owner does not run, or does not answer.
        """
