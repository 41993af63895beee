"""Faults of the product that the checker must find: each is planted into a copy of the source, where the checker runs.

A fault is one that a programmer might make, in what one feature owes another. No operation is worth its time unless one
of these faults needs it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
_PACKAGES: Final = ("aio_client", "scankv", "streaming_server", "tests")
_END_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededFault:
    """One fault.

    Attributes:
        name: Its name.
        breaks: The promise that it breaks.
        file: The file that it changes.
        edits: The texts to replace, each of which the file has once, and what replaces them.
        seed: The seed that found it soonest, for `make soak`.
    """

    name: str
    breaks: str
    file: str
    edits: tuple[tuple[str, str], ...]
    seed: int


def plant(fault: SeededFault, directory: Path) -> None:
    """Copies the packages that the checker runs with to a directory, and changes one file."""
    for package in _PACKAGES:
        shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__"))
    path = directory / fault.file
    text = path.read_text()
    for old, new in fault.edits:
        if text.count(old) != 1:
            raise ValueError(f"{fault.name}: {fault.file} has {text.count(old)} times, not once: {old}")
        text = text.replace(old, new)
    path.write_text(text)


def run_checker(directory: Path, seed: int, seconds: float, shorten_seconds: float = 0.0) -> tuple[int, str]:
    """Runs the checker with the packages of a directory. Returns its exit code, 1 if a fault was found, and output."""
    command = [sys.executable, "-m", "tests.model.checker", f"--seed={seed}", f"--seconds={seconds}"]
    command.append(f"--shorten={shorten_seconds}")
    environment = {**os.environ, "PYTHONPATH": str(directory)}
    limit = seconds + shorten_seconds + _END_SECONDS
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=directory, env=environment, timeout=limit
    )
    return done.returncode, done.stdout + done.stderr


FAULTS: Final = (
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
        name="later_definitions_in_a_restore",
        breaks="a table that is restored as of an instant has the definition of that instant",
        file="streaming_server/engine/backups/restore_plan.py",
        edits=(("            if change.micros > micros:\n", "            if False:\n"),),
        seed=1,
    ),
    SeededFault(
        name="restores_into_a_used_directory",
        breaks="all tables are restored only into an empty directory",
        file="streaming_server/storage/tables/data_directory.py",
        edits=(("        if restoring and not is_half and (", "        if False and ("),),
        seed=1,
    ),
    SeededFault(
        name="writes_are_not_synced",
        breaks="an acknowledged write survives a power cut",
        file="streaming_server/storage/rocks/store.py",
        edits=(("self._db.flush_wal(True)", "self._db.flush_wal(False)"),),
        seed=54,
    ),
    SeededFault(
        name="names_are_not_synced",
        breaks="a file that was replaced has its new content after a power cut",
        file="streaming_server/storage/files/checked_json.py",
        edits=(
            ("        partial.replace(path)\n        sync_directory(path.parent)\n", "        partial.replace(path)\n"),
        ),
        seed=54,
    ),
    SeededFault(
        name="epochs_are_used_twice",
        breaks="a position in changes that a recovery has lost is refused",
        file="streaming_server/engine/backups/recovery.py",
        edits=(("in_epoch(max(state.epoch, epoch_of(durable or 0)) + 1)", "in_epoch(state.epoch)"),),
        seed=111,
    ),
    SeededFault(
        name="writers_survive_a_recovery",
        breaks="a writer from before a recovery is refused",
        file="streaming_server/engine/backups/recovery.py",
        edits=(("losses=table.losses + 1", "losses=table.losses"),),
        seed=14,
    ),
    SeededFault(
        name="writers_survive_a_restore",
        breaks="a writer from before a restore is refused",
        file="streaming_server/storage/bucket/writer_states.py",
        edits=(
            (
                "is_known = self.history == definition.history if self.history else not definition.has_other_histories",
                "is_known = True",
            ),
        ),
        seed=757,
    ),
    SeededFault(
        name="repeated_requests_are_applied_again",
        breaks="a request that is repeated after a kill is applied once",
        file="streaming_server/storage/bucket/writer_states.py",
        edits=(("            if answer.sequence == identity.sequence:\n", "            if False:\n"),),
        seed=37,
    ),
)
"""All faults."""
