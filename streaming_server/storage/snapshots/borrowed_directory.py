"""The directory of a view of another worker process's table. Reading it changes nothing in it.

Opening a checkpoint writes small files beside it, so a checkpoint is opened through links in a directory of this
process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.model.errors import Unavailable
from streaming_server.storage.rocks.read_only_alias import ReadOnlyAlias
from streaming_server.storage.snapshots.snapshots import ViewDirectory

if TYPE_CHECKING:
    from pathlib import Path

_RETRY_SECONDS = 0.5


class BorrowedDirectory(ViewDirectory):
    """Like `ViewDirectory`, for a process that does not own the table.

    Args:
        table: The directory of the view's table.
        view_id: The view.
        aliases: A directory for the links.
    """

    def __init__(self, table: Path, view_id: str, aliases: Path) -> None:
        super().__init__(table, view_id)
        self._parent = aliases
        self._made: list[ReadOnlyAlias] = []

    def store(self, number: int) -> Path:
        """Returns a directory with links to the checkpoint of a bucket. Raises Unavailable if the view is gone."""
        # An empty directory among temporary files may have been cleaned up.
        self._parent.mkdir(exist_ok=True)
        try:
            alias = ReadOnlyAlias(self.bucket(number), self._parent)
        except FileNotFoundError:
            if self.exists():
                raise
            raise self.gone_error() from None
        self._made.append(alias)
        return alias.path

    def remove_links(self) -> None:
        """Removes all links, after the checkpoints were closed."""
        while self._made:
            self._made.pop().remove()

    def gone_error(self) -> Unavailable:
        """Returns the error for a view that was removed while it was borrowed. Only the owner knows the reason.

        The removal may be seen here before the message that ends the loan. So the call is to be repeated: then the
        owner is asked again, and answers that the snapshot or its table is gone, whichever came first.
        """
        return Unavailable(
            f"the snapshot view {self.view_id} was removed while worker processes read it: try again",
            retry_after=_RETRY_SECONDS,
            view=self.view_id,
        )
