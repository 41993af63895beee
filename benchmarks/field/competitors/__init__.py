"""The systems of the comparison: what each needs, how it is set up, and where its data is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.field.competitors.files import ArrowFlight, DuckDb, Paimon
from benchmarks.field.competitors.fluss import Fluss
from benchmarks.field.competitors.postgresql import PostgreSql, PostgreSqlAdbc
from benchmarks.field.competitors.redis import Redis
from benchmarks.field.competitors.scankv import ScanKv, ScanKvFirst

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.field.competitors.competitor import Competitor

COMPETITORS: Final[Mapping[str, type[Competitor]]] = {
    "scankv": ScanKv,
    "scankv-first": ScanKvFirst,
    "redis": Redis,
    "postgresql": PostgreSql,
    "postgresql-adbc": PostgreSqlAdbc,
    "duckdb": DuckDb,
    "flight": ArrowFlight,
    "paimon": Paimon,
    "fluss": Fluss,
}
"""The systems by the names of the command line. The first one is the reference of the ratios."""
