"""Which faults does the checker find in restores, power cuts and recoveries?"""

from __future__ import annotations

from typing import Final

from tests.model.checker.seeded_fault import SeededFault

FAULTS_OF_HOSTS: Final = (
    SeededFault(
        name="later_definitions_in_a_restore",
        breaks="a table that is restored as of an instant has the definition of that instant",
        file="streaming_server/engine/backups/restore_plan.py",
        edits=(("            if change.micros > micros:\n", "            if False:\n"),),
        has_script=True,
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
        has_script=True,
    ),
    SeededFault(
        name="names_are_not_synced",
        breaks="a file that was replaced has its new content after a power cut",
        file="streaming_server/storage/files/checked_json.py",
        edits=(
            ("        partial.replace(path)\n        sync_directory(path.parent)\n", "        partial.replace(path)\n"),
        ),
        has_script=True,
    ),
    SeededFault(
        name="epochs_are_used_twice",
        breaks="a position in changes that a recovery has lost is refused",
        file="streaming_server/engine/backups/recovery.py",
        edits=(("in_epoch(max(state.epoch, epoch_of(durable or 0)) + 1)", "in_epoch(state.epoch)"),),
        has_script=True,
    ),
    SeededFault(
        name="writers_survive_a_recovery",
        breaks="a writer from before a recovery is refused",
        file="streaming_server/engine/backups/recovery.py",
        edits=(("losses=table.losses + 1", "losses=table.losses"),),
        has_script=True,
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
        has_script=True,
    ),
    SeededFault(
        name="repeated_requests_are_applied_again",
        breaks="a request that is repeated after a kill is applied once",
        file="streaming_server/storage/bucket/writer_states.py",
        edits=(("            if answer.sequence == identity.sequence:\n", "            if False:\n"),),
        has_script=True,
    ),
)
"""Faults in what survives the machine."""
