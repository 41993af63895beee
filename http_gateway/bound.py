"""A bound on something that requests take for a while."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from http_gateway.problems import HttpRefusal

if TYPE_CHECKING:
    from collections.abc import Iterator


class Bound:
    """A bound on something that requests take for a while. Belongs to the event loop.

    Args:
        what: What is bounded, for the message.
        most: The most of it at once.

    Attributes:
        taken: How much is taken now.
    """

    def __init__(self, what: str, most: int) -> None:
        self._what = what
        self._most = most
        self.taken = 0

    @contextmanager
    def take(self, amount: int = 1) -> Iterator[None]:
        """Takes some of it inside the block.

        Raises:
            HttpRefusal: It is not free. One request may take more than the bound if it is alone.
        """
        if self.taken and self.taken + amount > self._most:
            raise HttpRefusal(
                503, "GATEWAY_BUSY", f"the gateway has too many {self._what} at once: try again in a moment"
            )
        self.taken += amount
        try:
            yield
        finally:
            self.taken -= amount
