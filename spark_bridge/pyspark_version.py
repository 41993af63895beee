"""Refuses what an older PySpark has no interface for."""

from __future__ import annotations

import pyspark

from scankv.model.errors import UsageError


def require_pyspark(needed: tuple[int, int], purpose: str, alternative: str) -> None:
    """Checks the version of PySpark.

    PySpark 4.0 and 4.1 call `latestOffset` without the start of the micro-batch, so a reader cannot find its position
    again after a restart. PySpark 4.0 gives rows to a stream writer, not Arrow data.

    Raises:
        UsageError: PySpark is older.
    """
    major, minor = pyspark.__version__.split(".")[:2]
    if (int(major), int(minor)) < needed:
        raise UsageError(
            f"PySpark {pyspark.__version__} has no interface {purpose}: "
            f"install PySpark {needed[0]}.{needed[1]} or later, or {alternative}"
        )
