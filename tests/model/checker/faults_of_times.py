"""Which faults does the checker find in what depends on time?"""

from __future__ import annotations

from typing import Final

from tests.model.checker.seeded_fault import SeededFault

FAULTS_OF_TIMES: Final = (
    SeededFault(
        name="rows_expire_by_name",
        breaks="rows expire by the same column after it was renamed",
        file="scankv/model/tables/schema.py",
        edits=(
            (
                "ttl_column=names.get(self.options.ttl_column, self.options.ttl_column)),",
                "ttl_column=self.options.ttl_column),",
            ),
        ),
        seed=1,
    ),
    SeededFault(
        name="rows_without_a_time_expire",
        breaks="a row without a time never expires",
        file="streaming_server/storage/rows/row_expiry.py",
        edits=(("        if valid is not None:\n            alive |= ~valid\n", ""),),
        has_script=True,
    ),
    SeededFault(
        name="silent_removals_have_changes",
        breaks="readers of changes get nothing of rows that expire silently",
        file="streaming_server/engine/merging/expired_rows.py",
        edits=(("    if definition.expiry is not None and definition.expiry.is_silent:\n", "    if False:\n"),),
        has_script=True,
    ),
    SeededFault(
        name="streams_begin_with_silent_rows",
        breaks="a stream that starts with all rows lacks those that expire silently",
        file="streaming_server/scan/read_plan.py",
        edits=(("        if self.changes_follow and not expiry.is_silent:\n", "        if self.changes_follow:\n"),),
        has_script=True,
    ),
    SeededFault(
        name="commit_time_follows_jumps",
        breaks="no row expires because the wall clock has jumped",
        file="streaming_server/clock.py",
        edits=(("return wall if wall - expected <= max_step else expected", "return wall"),),
        has_script=True,
    ),
    SeededFault(
        name="commit_time_goes_back",
        breaks="commit times never decrease, even if the wall clock is set back",
        file="streaming_server/clock.py",
        edits=(("        return max(commit + elapsed // 2, wall)\n", "        return wall\n"),),
        has_script=True,
    ),
    SeededFault(
        name="commit_time_begins_with_the_process",
        breaks="a restart continues the commit time, whatever the wall clock shows",
        file="streaming_server/clock.py",
        edits=(("self._commit, self._agreed, self._doubtful = stored.commit,", "self._agreed, self._doubtful ="),),
        has_script=True,
    ),
)
"""Faults in expiry and clocks."""
