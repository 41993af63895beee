"""Damaged tables as a listing describes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedTable:
    """A table that is damaged, completely or in some buckets.

    Attributes:
        name: `database.table`.
        reason: What is wrong, and what to do.
        partial: Whether only a part of the table is damaged. The rest is usable, and `Client.tables` lists the table as
            well. Otherwise the table can only be dropped with `Client.drop_table`, or restored from a copy.
    """

    name: str
    reason: str
    partial: bool
