"""Which faults does the checker find in reads, streams and transactions?"""

from __future__ import annotations

from typing import Final

from tests.model.checker.seeded_fault import SeededFault

FAULTS_OF_READS: Final = (
    SeededFault(
        name="tokens_ignore_renames",
        breaks="a scan does not continue with another column that has the name of its own now",
        file="streaming_server/scan/execution/open_scan.py",
        edits=(("            *plan.reused_names(definition),\n", ""),),
        seed=1,
    ),
    SeededFault(
        name="descending_scans_begin_again",
        breaks="a descending scan continues after its last row",
        file="scankv/model/keys/key_range.py",
        edits=(
            (
                "            return KeyRange(self.start, key if self.end is None else min(key, self.end))\n",
                "            return KeyRange(self.start, self.end)\n",
            ),
        ),
        seed=1,
    ),
    SeededFault(
        name="change_tokens_of_another_table",
        breaks="the token of changes is refused after the table was dropped and created again",
        file="streaming_server/scan/changes/log_plan.py",
        edits=(('    return definition.name, definition.incarnation, "log"', '    return definition.name, "", "log"'),),
        seed=1,
    ),
    SeededFault(
        name="changes_applied_twice",
        breaks="a full start that was interrupted has no change that its rows have already",
        file="streaming_server/scan/changes/already_applied.py",
        edits=(("            if view.after.bucket > bucket:", "            if view.after.bucket >= bucket:"),),
        seed=1,
    ),
    SeededFault(
        name="rows_that_begin_to_match",
        breaks="a row that begins to match is an insert for a reader of matching rows",
        file="streaming_server/scan/changes/change_rows.py",
        edits=(("    kinds[after & ~other] = RowKind.INSERT\n", ""),),
        seed=1,
    ),
    SeededFault(
        name="times_skip_a_change",
        breaks="changes from a time on begin with the first one that was committed then",
        file="streaming_server/storage/changelog/stored_log.py",
        edits=(
            (
                "        return span.offset_of(max(found, span.first))\n",
                "        return span.offset_of(min(max(found, span.first) + 1, span.end))\n",
            ),
        ),
        seed=1,
    ),
    SeededFault(
        name="ties_by_index",
        breaks="of rows with equal values, a top-N has those with the least keys, also by an index",
        file="streaming_server/scan/queries/indexed_top_n.py",
        edits=(("    if best.cut:\n", "    if False:\n"),),
        seed=1,
    ),
    SeededFault(
        name="reads_without_conflicts",
        breaks="a transaction is refused if a row that it has read for update has changed",
        file="streaming_server/engine/transactions/verify.py",
        edits=(
            (
                "        offsets = request.buckets if reads else self.since.get(request.table)\n",
                "        offsets = self.since.get(request.table)\n",
            ),
        ),
        seed=1,
    ),
    SeededFault(
        name="indexes_are_read_during_writes",
        breaks="a query by an index shows one instant, whatever is written concurrently",
        file="streaming_server/engine/reads/table_reads.py",
        edits=(
            (
                "            yield self._lock_view(opened, check)\n",
                "            locked = self._lock_view(opened, check)\n        yield locked\n",
            ),
        ),
        has_script=True,
    ),
    SeededFault(
        name="nan_is_among_values",
        breaks="no comparison with NaN is true but that it differs, also not in a list of values",
        file="scankv/model/expressions/literals.py",
        edits=(("    values = values.filter(pc.invert(pc.is_nan(values)))\n", ""),),
        has_script=True,
    ),
    SeededFault(
        name="zeros_are_equal",
        breaks="readers of changes get every row that differs, also by the sign of a zero",
        file="streaming_server/engine/merging/outcome.py",
        edits=(
            (
                "pc.equal(old_values, new_values.filter(pa.array(exists))).to_numpy(zero_copy_only=False)\n",
                "[\n            old == new\n            for old, new in zip(\n"
                "                old_rows.to_pylist(), batch.filter(pa.array(exists)).to_pylist(), strict=True\n"
                "            )\n        ]\n",
            ),
        ),
        has_script=True,
    ),
)
"""Faults in reads and positions."""
