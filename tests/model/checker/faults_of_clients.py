"""Which faults does the checker find in what clients write and read at once?"""

from __future__ import annotations

from typing import Final

from tests.model.checker.seeded_fault import SeededFault

FAULTS_OF_CLIENTS: Final = (
    SeededFault(
        name="readers_pass_commit_barriers",
        breaks="a reader sees all of a transaction or nothing",
        file="streaming_server/engine/bucket/commit_barrier.py",
        edits=(
            (
                "                if mutex.barrier is not None:\n                    await",
                "                if False:\n                    await",
            ),
            ("            if all(mutex.barrier is None for mutex in held):\n", "            if True:\n"),
        ),
        seed=1,
    ),
    SeededFault(
        name="committed_ids_are_forgotten",
        breaks="a transaction with an id is committed once, however often it is begun",
        file="streaming_server/engine/transactions/committed_transactions.py",
        edits=(("        found = self.with_id(id_)\n", "        found = None\n"),),
        seed=1,
    ),
    SeededFault(
        name="backups_of_several_instants",
        breaks="a backup has all tables as of one instant",
        file="streaming_server/engine/backups/backup_cut.py",
        edits=(("lock_mutexes(buckets):", "lock_mutexes([]):"),),
        has_script=True,
    ),
    SeededFault(
        name="queries_of_several_instants",
        breaks="a query in SQL reads all of its tables as of one instant",
        file="aio_client/_sql/query.py",
        edits=(
            (
                "            group = await pins.enter_async_context("
                "self._client.snapshot([*tables], ttl=_PIN_SECONDS))\n"
                "            pinned = {name: group.table(name) for name in tables}\n",
                "            pinned = {\n"
                "                name: await pins.enter_async_context(table.snapshot(ttl=_PIN_SECONDS))\n"
                "                for name, table in tables.items()\n            }\n",
            ),
        ),
        has_script=True,
    ),
)
"""Faults that only clients which write and read at once see."""
