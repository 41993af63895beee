"""Which faults does the checker find that only more rows, or several ways of one write, show?"""

from __future__ import annotations

from typing import Final

from tests.model.checker.seeded_fault import SeededFault

FAULTS_OF_HISTORIES: Final = (
    SeededFault(
        name="equal_rows_are_left_out",
        breaks="a changelog without deduplication has the rows that change nothing, however many are written at once",
        file="streaming_server/engine/merging/outcome.py",
        edits=(("    if row_deduplicate and exists.any():", "    if exists.any():"),),
        has_script=True,
    ),
)
"""Faults that random histories of one table found before."""
