"""What a listing says of a table that is damaged."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedTable:
    """A table that cannot be used, or of which some buckets cannot.

    Attributes:
        name: `database.table`.
        reason: What is wrong, and what to do.
        partly: Whether the rest of the table can be used: `Client.tables` has it as well. Otherwise the table can only
            be dropped, with `Client.drop_table`, until what is damaged is restored from a copy.
    """

    name: str
    reason: str
    partly: bool
