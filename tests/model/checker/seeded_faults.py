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
)
"""All faults."""
