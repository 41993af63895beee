"""Who has made a request over HTTP: known from its calls, and remembered until its line in the access log."""

from __future__ import annotations

from typing import Final

_MOST: Final = 10_000


class RequestPrincipals:
    """The principals of the latest requests over HTTP. Bound to the event loop.

    The gateway knows tokens and not whose they are. The server knows it from the first call of a request.
    """

    def __init__(self) -> None:
        """Creates an empty record."""
        self._names: dict[str, str] = {}

    def remember(self, request_id: str, principal: str) -> None:
        """Remembers who has made a request. Forgets the oldest request if there are too many."""
        if len(self._names) >= _MOST and request_id not in self._names:
            del self._names[next(iter(self._names))]
        self._names[request_id] = principal

    def take(self, request_id: str) -> str:
        """Returns who has made a request, and forgets the request. Empty: the principal is not known."""
        return self._names.pop(request_id, "")
