"""Which faults does the checker find in mirrors, columnar bases, positions of another table and shared calls?"""

from __future__ import annotations

from typing import Final

from tests.model.checker.seeded_fault import SeededFault

FAULTS_OF_FEATURES: Final = (
    SeededFault(
        name="mirrors_keep_deleted_rows",
        breaks="a mirror has no row that was deleted, or that matches no longer",
        file="aio_client/mirror.py",
        edits=(("        deque(map(self._positions.pop, compress(last, is_gone), repeat(None)), maxlen=0)\n", ""),),
        has_script=True,
    ),
    SeededFault(
        name="mirrors_keep_cleared_ranges",
        breaks="a mirror has no row of a range that was deleted at once",
        file="aio_client/mirror.py",
        edits=(
            (
                "        deque(map(self._positions.pop, map(keys.__getitem__, cleared.indices_of(keys))), maxlen=0)\n",
                "",
            ),
        ),
        has_script=True,
    ),
    SeededFault(
        name="mirrors_find_columns_by_name",
        breaks="a mirror finds the columns of its earlier rows by their ids",
        file="aio_client/mirror.py",
        edits=(
            (
                "        by_id = all(isinstance(id_, int) for id_ in (*self.ids, *before.ids))\n",
                "        by_id = False\n",
            ),
        ),
        has_script=True,
    ),
    SeededFault(
        name="mirrors_lack_added_columns",
        breaks="a mirror has the columns that were added since it was opened",
        file="aio_client/mirror.py",
        edits=(("        if known is not None and known != columns:\n", "        if False:\n"),),
        has_script=True,
    ),
    SeededFault(
        name="bases_without_their_delta",
        breaks="a scan of a columnar base has what was written since it was built",
        file="streaming_server/scan/columnar/base_view.py",
        edits=(("            self.delta.merge,\n", "            lambda: self.delta.merge().slice(0, 0),\n"),),
        has_script=True,
    ),
    SeededFault(
        name="scans_repeat_their_last_row",
        breaks="a scan continues after its last row, whatever it reads",
        file="scankv/model/keys/key_range.py",
        edits=(('        successor = key + b"\\0"\n', "        successor = key\n"),),
        has_script=True,
    ),
    SeededFault(
        name="parts_of_a_scan_overlap",
        breaks="the parts of a scan of a snapshot have each row once",
        file="streaming_server/engine/snapshots/splits.py",
        edits=(
            (
                "        return [KeyRange(start, end) for start, end in pairwise(bounds)]\n",
                '        return [KeyRange(start, end and end + b"\\0") for start, end in pairwise(bounds)]\n',
            ),
        ),
        has_script=True,
    ),
    SeededFault(
        name="earlier_rows_by_name",
        breaks="what a client writes with an earlier definition goes to the columns that it means",
        file="streaming_server/storage/rows/conversion.py",
        edits=(
            (
                "    places = {column.id: place for place, column in enumerate(old.columns)}\n"
                "    arrays = [\n        _widened_row(",
                "    here = {column.name: column.id for column in new.columns}\n"
                "    places = {here.get(column.name, -1): place for place, column in enumerate(old.columns)}\n"
                "    arrays = [\n        _widened_row(",
            ),
        ),
        has_script=True,
    ),
    SeededFault(
        name="conditions_of_another_table",
        breaks="a conditional write is refused after its table was dropped and created again",
        file="streaming_server/engine/writes/table_writes.py",
        edits=(
            (
                "            check_offsets_of(definition, preconditions.unchanged_since.table_incarnation)\n",
                "            pass\n",
            ),
        ),
        has_script=True,
    ),
    SeededFault(
        name="undo_passes_ranges",
        breaks="an undo is refused if rows were written or deleted without their changes in between",
        file="streaming_server/engine/transactions/undo.py",
        edits=(("            if bucket.state.has_markers_since(start):\n", "            if False:\n"),),
        has_script=True,
    ),
    SeededFault(
        name="expired_rows_are_read",
        breaks="no scan returns rows that have expired",
        file="streaming_server/scan/read_plan.py",
        edits=(("        if expiry is None or self.keeps_expired:\n", "        if True:\n"),),
        has_script=True,
    ),
    SeededFault(
        name="answers_of_another_call",
        breaks="each of the calls that share a request gets its own answer",
        file="aio_client/_transport/shared_calls.py",
        edits=(("in zip(batch, results, strict=True):", "in zip(batch, [*results][::-1], strict=True):"),),
        has_script=True,
    ),
)
"""Faults that one mechanism of several features would show in all of them."""
