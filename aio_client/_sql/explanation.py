"""How a query in SQL would be answered: by the server, and by DuckDB."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aio_client._scan.explanation import ScanExplanation


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlExplanation:
    """What the server and DuckDB would do for a query; `print` shows it. Texts are for people, and may change.

    Attributes:
        computed: What the server computes, so that no rows travel, in words. None: it returns rows.
        scans: How the server reads the rows, for each scan in the order in which DuckDB begins them. Scans that DuckDB
            only begins if others have rows are missing.
        plan: The plan of DuckDB for the rest, as it shows it.
        pinned: The tables that are pinned as of one instant, because the query reads several, or one several times.
    """

    computed: str | None
    scans: tuple[ScanExplanation, ...]
    plan: str
    pinned: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Returns the server's part, scan by scan, and DuckDB's plan."""
        parts = [f"computed  {self.computed}\n{scan}" if self.computed else str(scan) for scan in self.scans]
        if self.pinned:
            parts.insert(0, f"pinned    {', '.join(self.pinned)}, as of one instant")
        return "\n\n".join([*parts, f"DuckDB\n{self.plan.rstrip()}"])
