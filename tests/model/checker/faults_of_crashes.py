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
)
"""Faults in what a process leaves behind."""
