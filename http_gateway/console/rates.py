"""How much is written to a table and read from it, per second? The one place where the list of tables learns it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from http_gateway.console.sessions import Session
    from http_gateway.gateway import Gateway


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rows per second. Immutable.

    Attributes:
        rows_written: The rows written.
        rows_read: The rows read.
    """

    rows_written: float
    rows_read: float


def rates_of(gateway: Gateway, session: Session, table: str) -> Rates | None:
    """Returns the rates of a table. None: nothing has measured them, so the list has no columns for them."""
    return None
