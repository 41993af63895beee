"""The isolation of a read as a field of its request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.model.scans.isolation import check_isolation
from scankv.v1 import scan_pb2

if TYPE_CHECKING:
    from scankv.model.scans.isolation import Isolation


def isolation_message(isolation: Isolation, snapshot_id: str | None = None) -> scan_pb2.Isolation.ValueType:
    """Returns the value of a request's field `isolation`. The default is left out, as earlier servers do not know it.

    Raises:
        UsageError: As `check_isolation`.
    """
    check_isolation(isolation, snapshot_id=snapshot_id)
    return scan_pb2.ISOLATION_READ_LATEST if isolation == "read_latest" else scan_pb2.ISOLATION_UNSPECIFIED
