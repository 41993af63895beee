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
    SeededFault(
        name="views_are_opened_late",
        breaks="a scan has the rows as of its log offsets, whatever is written while it is opened",
        file="streaming_server/engine/reads/table_reads.py",
        edits=(
            (
                "                scans = await opening.scans(",
                "            await wait_until_readable(table.buckets, view.log_offsets)\n"
                "            if True:\n                scans = await opening.scans(",
            ),
        ),
        has_script=True,
    ),
    SeededFault(
        name="conditions_without_a_changelog",
        breaks="a conditional write is refused if nothing records what has changed",
        file="streaming_server/engine/writes/changed_keys.py",
        edits=(('    if definition.options.changelog == "none":\n', "    if False:\n"),),
        has_script=True,
    ),
)
"""Faults that random histories of one table found before."""
