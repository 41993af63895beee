"""Query results with the version of the table that they are as of, so that clients can repeat a query cheaply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from scankv.model.scans.scan_spec import check_version

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A query result, and the version of the table that it was computed from.

    Attributes:
        value: The result.
        version: What to pass as `since`, to get a result only if something has changed. Opaque. Equal as long as no row
            and no column of the table changes, also across restarts of the server; not a clock.
    """

    value: T
    version: bytes


class Conditional(Protocol):
    """A request that the server may answer with `unchanged`."""

    if_changed_since: bytes


_Request = TypeVar("_Request", bound=Conditional)


def require_change(request: _Request, since: bytes | None) -> _Request:
    """Makes a request conditional on a change since a version, and returns it. None: it stays unconditional.

    Raises:
        UsageError: `since` is not a version.
    """
    if since is not None:
        check_version("since", since)
        request.if_changed_since = since
    return request
