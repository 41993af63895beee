"""Which faults does the checker find in tables and writes of all kinds?"""

from __future__ import annotations

from typing import Final

from tests.model.checker.seeded_fault import SeededFault

FAULTS_OF_TABLES: Final = (
    SeededFault(
        name="columns_by_name",
        breaks="a column that is added under the name of a dropped one does not have its values",
        file="streaming_server/storage/rows/conversion.py",
        edits=(
            (
                "    places = {column.id: place for place, column in enumerate(old.columns)}\n    nullable",
                "    here = {column.name: column.id for column in new.columns}\n"
                "    places = {here.get(column.name, -1): place for place, column in enumerate(old.columns)}\n"
                "    nullable",
            ),
        ),
        seed=1,
    ),
    SeededFault(
        name="offsets_of_another_table",
        breaks="log offsets are refused after the table was dropped and created again",
        file="streaming_server/scan/changes/log_plan.py",
        edits=(
            (
                "                check_offsets_of(definition, position.table_incarnation)\n",
                "                pass\n",
            ),
        ),
        seed=1,
    ),
    SeededFault(
        name="index_id_used_twice",
        breaks="an index that is added after another one was dropped has none of its entries",
        file="scankv/model/tables/schema.py",
        edits=(
            (
                "        indexes, last_id = list(self.indexes), self.last_index_id\n",
                "        indexes, last_id = list(self.indexes), max((each.id for each in self.indexes), default=0)\n",
            ),
        ),
        seed=1,
    ),
    SeededFault(
        name="consumers_survive_a_restore",
        breaks="a consumer of a restored table continues only when it is accepted",
        file="streaming_server/engine/changelog/consumer_registry.py",
        edits=(("consumer.is_restored = not is_current", "consumer.is_restored = False"),),
        seed=1,
    ),
    SeededFault(
        name="expired_rows_are_merged",
        breaks="nothing of an expired row is merged into the row that follows it",
        file="streaming_server/engine/writes/bucket_steps.py",
        edits=(
            (
                "    if codec.definition.expiry is not None:\n        commit_micros =",
                "    if False:\n        commit_micros =",
            ),
        ),
        seed=1,
    ),
    SeededFault(
        name="versions_ignore_expiry",
        breaks="an answer is computed again when rows have expired",
        file="streaming_server/scan/versions.py",
        edits=((" {expiry.since_micros} {tick_of(micros)} ", " {expiry.since_micros} "),),
        seed=1,
    ),
    SeededFault(
        name="write_times_from_before",
        breaks="rows count as written at the moment at which rows begin to expire again",
        file="scankv/model/tables/expiry.py",
        edits=(("        if self.by_write and micros < self.since_micros:", "        if False:"),),
        seed=1,
    ),
    SeededFault(
        name="rows_counted_after_a_cleared_bucket",
        breaks="the number of rows is right after all rows of a bucket were deleted at once",
        file="streaming_server/storage/bucket/bucket.py",
        edits=(
            (
                "(0, len(change.put_keys)) if change.clears_bucket else (self._state.rows, change.rows_added)",
                "(self._state.rows, change.rows_added)",
            ),
        ),
        seed=1,
    ),
    SeededFault(
        name="index_entries_stay",
        breaks="an index has no entries of rows that have changed",
        file="streaming_server/storage/bucket/bucket.py",
        edits=(("            batch.delete_entries(sorted(entries.delete_keys.to_pylist()))\n", ""),),
        seed=1,
    ),
    SeededFault(
        name="dropped_rows_of_unknown_number_stay",
        breaks="a partition that is dropped and created again has none of its rows",
        file="streaming_server/storage/bucket/bucket.py",
        edits=(("            if any(count != 0 for count in counts):\n", "            if any(counts):\n"),),
        seed=1,
    ),
    SeededFault(
        name="undo_forgets_a_bucket",
        breaks="an undo reverts what a writer has written in all buckets",
        file="streaming_server/engine/transactions/undo.py",
        edits=(
            (
                "        buckets = [self._table.buckets[number] for number in sorted(offsets)]\n",
                "        buckets = [self._table.buckets[number] for number in sorted(offsets)[:-1]]\n",
            ),
        ),
        seed=1,
    ),
    SeededFault(
        name="ranges_are_no_changes",
        breaks="a conditional write takes a range that was written without its changes for a change of its keys",
        file="streaming_server/engine/writes/changed_keys.py",
        edits=(("            changed |= within\n", "            pass\n"),),
        seed=3,
    ),
    SeededFault(
        name="conditions_before_the_write",
        breaks="no other write comes between the check of a condition and the write",
        file="streaming_server/engine/writes/writing.py",
        edits=(
            (
                "                if self._preconditions.unchanged_since is not None:\n"
                "                    # All mutexes",
                "                if False:\n                    # All mutexes",
            ),
        ),
        seed=1,
    ),
    SeededFault(
        name="functions_of_renamed_columns",
        breaks="an aggregated column keeps its function when it is renamed",
        file="scankv/model/tables/merge_spec.py",
        edits=(
            (
                "tuple(replace(each, column=names.get(each.column, each.column)) for each in self.aggregates),",
                "self.aggregates,",
            ),
        ),
        seed=3,
    ),
    SeededFault(
        name="expired_rows_survive_a_truncate",
        breaks="a change of the time to live does not bring back rows that had expired when all rows were deleted",
        file="streaming_server/engine/transactions/delete_all.py",
        edits=(
            (
                "    keys = replace(plan, columns=table.definition.primary_key, keeps_expired=True)\n",
                "    keys = replace(plan, columns=table.definition.primary_key)\n",
            ),
        ),
        seed=3,
    ),
    SeededFault(
        name="bootstrap_counts_rows_twice",
        breaks="a table made at once has as many rows as keys, even if keys occur twice in its source",
        file="streaming_server/engine/bootstrap/bucket_merge.py",
        edits=(
            (
                "            self.files.rows += len(change.put_keys)\n",
                "            self.files.rows += len(keys)\n",
            ),
        ),
        seed=3,
    ),
    SeededFault(
        name="range_of_one_key",
        breaks="the range that stands for untracked changes has all keys of the write",
        file="streaming_server/engine/merging/outcome.py",
        edits=(
            (
                "marker=RangeMarker.between(keys[0].as_py(), keys[-1].as_py()))",
                "marker=RangeMarker.between(keys[0].as_py(), keys[0].as_py()))",
            ),
        ),
        seed=3,
    ),
    SeededFault(
        name="appended_again_elsewhere",
        breaks="rows are appended once, even if their request is repeated",
        file="streaming_server/engine/merging/appended_rows.py",
        edits=(
            (
                "    return xxh3_64_intdigest(data) if writer is None else",
                "    return __import__('time').monotonic_ns() if writer is None or sequence else",
            ),
        ),
        seed=3,
    ),
    SeededFault(
        name="newest_rows_by_record",
        breaks="a reversed scan of a table without a key begins with its newest rows",
        file="streaming_server/scan/log_cursor.py",
        edits=(("pa.concat_batches(reversed(batches) if self._reverse else batches)", "pa.concat_batches(batches)"),),
        seed=3,
    ),
    SeededFault(
        name="deleted_after_the_replacement",
        breaks="the rows that replace others are there, even if they have the same keys",
        file="aio_client/_client/transaction_part.py",
        edits=(
            (
                '        await self._stage_selected(table, scope, "overwrite", locks)\n'
                "        return await self._stage(table, pieces, locks)\n",
                "        rows = await self._stage(table, pieces, locks)\n"
                '        await self._stage_selected(table, scope, "overwrite", locks)\n'
                "        return rows\n",
            ),
        ),
        seed=6,
    ),
    SeededFault(
        name="changelogs_change_without_a_marker",
        breaks="a stream does not pass a change of the changelog after which the rows before changes are missing",
        file="streaming_server/storage/bucket/bucket.py",
        edits=(("            elif recorded and recorded[-1] != after:\n", "            elif False:\n"),),
        seed=1,
    ),
    SeededFault(
        name="current_defaults_of_earlier_rows",
        breaks="rows keep the default that a column had when it was added",
        file="streaming_server/storage/rows/conversion.py",
        edits=(
            (
                "return _constant(column.initial_default, column.type, count)",
                "return _constant(column.write_default, column.type, count)",
            ),
        ),
        seed=1,
    ),
    SeededFault(
        name="order_of_an_index_without_equality",
        breaks="an index has rows in the order of its last column only if all columns before it equal a value",
        file="scankv/model/expressions/index_planning.py",
        edits=(
            (
                "    if ranges and len(shared) < position:\n",
                "    if ranges and len(shared) < position - 1:\n",
            ),
        ),
        seed=2,
    ),
)
"""Faults in definitions, writes and expiry."""
