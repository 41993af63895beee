"""Which faults does the checker find when a server dies, or its disk fails, within an operation?"""

from __future__ import annotations

from typing import Final

from tests.model.checker.seeded_fault import SeededFault

_OPENER: Final = "streaming_server/engine/bucket/bucket_opener.py"
_OPENED: Final = (
    "        self._held_at_opening = self._take_holds(bucket)\n        return bucket\n",
    "        self._held_at_opening = self._take_holds(bucket)\n"
    "        self._first = self._definition()\n        return bucket\n",
)

FAULTS_OF_CRASHES: Final = (
    SeededFault(
        name="definitions_are_stored_later",
        breaks="a definition that was changed is that of the table after a kill",
        file="streaming_server/storage/tables/catalog.py",
        edits=(
            (
                "        write_checked_json(self.path(definition.name) / _FILE, {**definition.to_json(), **kept})\n"
                "        self._tables[definition.name] = definition\n",
                "        __import__('threading').Timer(\n"
                "            10,\n            write_checked_json,\n"
                "            (self.path(definition.name) / _FILE, {**definition.to_json(), **kept}),\n"
                "        ).start()\n"
                "        self._tables[definition.name] = definition\n",
            ),
        ),
        has_script=True,
    ),
    SeededFault(
        name="drops_end_with_the_process",
        breaks="a partition whose drop a kill has interrupted is dropped from all buckets",
        file=_OPENER,
        edits=(
            _OPENED,
            (
                "bucket.state.last_drop != drop.number and bucket.is_writable",
                "bucket.state.last_drop != drop.number and self._definition() is not self._first",
            ),
        ),
        has_script=True,
    ),
    SeededFault(
        name="changelogs_change_with_the_process",
        breaks="a change of the changelog that a kill has interrupted has its marker in all buckets",
        file=_OPENER,
        edits=(
            _OPENED,
            (
                "len(self._definition().earlier_changelogs) and bucket.is_writable",
                "len(self._definition().earlier_changelogs) and self._definition() is not self._first",
            ),
        ),
        has_script=True,
    ),
    SeededFault(
        name="pins_end_with_the_process",
        breaks="a snapshot that was pinned survives a kill",
        file="streaming_server/engine/snapshots/snapshots.py",
        edits=(("in view.directory.leases().items():", "in [*view.directory.leases().items()][1:]:"),),
        has_script=True,
    ),
    SeededFault(
        name="transactions_are_applied_again",
        breaks="a transaction whose commit a kill has interrupted is applied once to each bucket",
        file="streaming_server/engine/transactions/roll_forward.py",
        edits=(
            ("= 0 if answer is None else answer.rows\n", "= 0\n"),
            ("            if answer is not None and answer.complete:\n", "            if False:\n"),
        ),
        has_script=True,
    ),
    SeededFault(
        name="undos_conflict_with_themselves",
        breaks="an undo that a kill has interrupted is finished by a repeated one",
        file="streaming_server/engine/transactions/undo_plan.py",
        edits=(
            (
                "who = _OWN if own else _UNDONE if origin.writer == self._undo else _OTHERS\n",
                "who = _OWN if own else _OTHERS\n",
            ),
        ),
        has_script=True,
    ),
    SeededFault(
        name="rows_expire_during_a_roll_forward",
        breaks="a transaction that is rolled forward after a kill merges rows as of its commit",
        file="streaming_server/engine/transactions/roll_forward.py",
        edits=(
            (
                "MergedTransactionRows(await live.open(), table.state.codec, self._decision.micros)",
                "MergedTransactionRows(await live.open(), table.state.codec, 2**62)",
            ),
        ),
        has_script=True,
    ),
    SeededFault(
        name="decided_transactions_are_forgotten",
        breaks="a transaction whose commit a kill has interrupted is applied to all buckets",
        file="streaming_server/engine/transactions/roll_forward.py",
        edits=(
            (
                "        if self._pending():\n            try:\n                # Read",
                "        if False:\n            try:\n                # Read",
            ),
        ),
        has_script=True,
    ),
    SeededFault(
        name="writes_have_no_log",
        breaks="an acknowledged write survives a kill",
        file="streaming_server/storage/rocks/store.py",
        edits=(
            (
                "            self._db.write(batch.writes)\n",
                "            options = __import__('rocksdict').WriteOptions()\n"
                "            options.disable_wal = True\n"
                "            self._db.write(batch.writes, options)\n",
            ),
        ),
        seed=1,
    ),
    SeededFault(
        name="tables_are_defined_later",
        breaks="a table that was created exists after a kill",
        file="streaming_server/storage/tables/catalog.py",
        edits=(
            ("                write_checked_json(draft / _FILE, definition.to_json())\n", ""),
            (
                "                draft.rename(path)\n",
                "                draft.rename(path)\n                __import__('threading').Timer(\n"
                "                    1, write_checked_json, (path / _FILE, definition.to_json())\n"
                "                ).start()\n",
            ),
        ),
        has_script=True,
    ),
    SeededFault(
        name="writes_begin_again",
        breaks="a write of several batches that a kill has interrupted continues after its last batch",
        file="streaming_server/engine/writes/writing.py",
        edits=(
            (
                "done, count = self._done.get(number, 0) if answer is None else answer.rows, len(part.keys)\n",
                "done, count = self._done.get(number, 0), len(part.keys)\n",
            ),
        ),
        has_script=True,
    ),
    SeededFault(
        name="ranges_end_with_the_process",
        breaks="a range whose deletion a kill has interrupted is deleted completely",
        file="streaming_server/engine/transactions/staged_ranges.py",
        edits=(
            (
                "done = step(rows_before + deletion.rows, complete=deletion.is_done)",
                "done = step(rows_before + deletion.rows, complete=True)",
            ),
        ),
        has_script=True,
    ),
    SeededFault(
        name="built_buckets_are_recorded_early",
        breaks="a bucket whose bootstrap a kill has interrupted has all of its rows",
        file="streaming_server/engine/bootstrap/bucket_build.py",
        edits=(
            (
                "        if self.files.least is not None:\n            self._make_bucket(",
                '        rows = {"merged_rows": self.files.merged_rows, "rows": self.files.rows}\n'
                "        self._directory.mark_built(self.number, rows)\n"
                "        if self.files.least is not None:\n            self._make_bucket(",
            ),
        ),
        has_script=True,
    ),
    SeededFault(
        name="commits_are_stored_later",
        breaks="a consumer continues after its last commit after a kill",
        file="streaming_server/storage/tables/consumers.py",
        edits=(
            (
                "        write_checked_json(self._file(record.consumer_id), content)\n",
                "        __import__('threading').Timer(\n"
                "            10, write_checked_json, (self._file(record.consumer_id), content)\n        ).start()\n",
            ),
        ),
        has_script=True,
    ),
    SeededFault(
        name="expired_rows_leave_entries",
        breaks="an expired row is removed together with its index entries",
        file="streaming_server/engine/writes/bucket_steps.py",
        edits=(
            (
                "        bucket.apply(_with_counts(change, codec.definition), None, commit_micros)\n",
                "        rows = replace(change, entries=())\n"
                "        bucket.apply(_with_counts(rows, codec.definition), None, commit_micros)\n"
                "        batch = bucket._store.batch()\n"
                "        for each in change.entries:\n"
                "            batch.delete_entries(each.delete_keys.to_pylist())\n"
                "        bucket._store.write(batch)\n",
            ),
        ),
        has_script=True,
    ),
    SeededFault(
        name="builds_end_with_the_process",
        breaks="an index whose build a kill has interrupted is ready once it has an entry for each row",
        file="streaming_server/storage/bucket/bucket.py",
        edits=(
            (
                "if before.rows == 0 else tuple(kept)\n",
                "if before.rows == 0 or {*before.indexes} == {*indexes} else tuple(kept)\n",
            ),
        ),
        has_script=True,
    ),
    SeededFault(
        name="bases_end_with_the_process",
        breaks="a columnar base that an earlier process has built has what was written since",
        file="streaming_server/engine/columnar/base_replay.py",
        edits=(("        while count_of(self._at) < count_of(end):\n            self._step(end)\n", "        pass\n"),),
        has_script=True,
    ),
    SeededFault(
        name="segments_precede_their_data",
        breaks="a restore as of an instant finds all that was archived before, whenever the server was killed",
        file="streaming_server/engine/backups/segment_writing.py",
        edits=(
            ("    data.flush()\n    changed,", "    changed,"),
            (
                "    store.write_segment(data.segment_id, stored.to_json())\n",
                "    store.write_segment(data.segment_id, stored.to_json())\n    data.flush()\n",
            ),
        ),
        has_script=True,
    ),
    SeededFault(
        name="shares_are_not_promised",
        breaks="a transaction over tables of several workers is applied by all of them, whichever was killed",
        file="streaming_server/engine/transactions/two_phase.py",
        edits=(("        await self._promise(decision)\n", ""),),
        has_script=True,
    ),
)
"""Faults in what a process leaves behind."""
