"""Answers with the version of the table that they are of, so that the same question can be asked again cheaply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from scankv.model.scans.scan_spec import check_version

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """An answer, and the version of what it was computed from.

    Attributes:
        value: The answer.
        version: What to give as `since`, to be told only when something has changed. Opaque: equal as long as no row
            and no column of the table changes, also over restarts of the server; no clock.
    """

    value: T
    version: bytes


class Conditional(Protocol):
    """A request that can be answered with `unchanged`."""

    if_changed_since: bytes


_Request = TypeVar("_Request", bound=Conditional)


def require_change(request: _Request, since: bytes | None) -> _Request:
    """The same request, to be answered only when something has changed since a version; None: in any case.

    Raises:
        UsageError: It is no version.
    """
    if since is not None:
        check_version("since", since)
        request.if_changed_since = since
    return request
