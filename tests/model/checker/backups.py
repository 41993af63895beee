"""Operations with backups: they are taken while the server runs, and restored into an empty directory."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from streaming_server.engine.backups.restore import restore_all
from streaming_server.engine.backups.restore_plan import plan_backup
from streaming_server.storage.backup.backup_manifest import read_manifest
from streaming_server.storage.backup.backup_store import BackupStore
from tests.model.checker.operation import Arguments, define
from tests.model.checker.reads import check_all
from tests.model.checker.world import Backup

if TYPE_CHECKING:
    from random import Random

    from tests.model.checker.world import CheckerWorld


def _draw_backup(world: CheckerWorld, random: Random) -> Arguments | None:
    return {"as": f"b{world.next_number()}"} if world.tables and random.random() < 0.5 else None


@define("backup", 0.7, _draw_backup)
def _back_up(world: CheckerWorld, arguments: Arguments) -> None:
    if not world.tables:
        return
    done = world.client.create_backup()
    numbers = {table.number for table in world.tables.values()}
    consumed = {
        name: dict(kept.position)
        for name, kept in world.kept.items()
        if kept.kind == "consumer" and kept.table in numbers
    }
    world.backups[arguments["as"]] = Backup(done.backup_id, deepcopy(world.tables), consumed)
    world.record("backup")


def _draw_restore(world: CheckerWorld, random: Random) -> Arguments | None:
    return {"backup": random.choice(sorted(world.backups))} if world.backups else None


@define("restore", 0.5, _draw_restore)
def _restore(world: CheckerWorld, arguments: Arguments) -> None:
    backup = world.backups.get(arguments["backup"])
    if backup is None:
        return
    world.server.stop()
    data, store = world.new_directory(), BackupStore(str(world.location))
    result = restore_all(store, plan_backup(read_manifest(store, backup.id)), data)
    assert [each.why for each in result.tables] == [""] * len(result.tables)
    world.serve_again(data)
    world.tables = deepcopy(backup.tables)
    # A restored table has another history from here on, so what was kept of the former one is not taken any more.
    numbers = {table.number: world.next_number() for table in world.tables.values()}
    for table in world.tables.values():
        world.took_effect[numbers[table.number]] = set(world.took_effect[table.number])
        table.number = numbers[table.number]
    for name, position in backup.consumed.items():
        kept = world.kept[name]
        number = numbers[kept.table]
        restored = deepcopy(kept)
        restored.table, restored.position, restored.value = number, dict(position), "restored"
        world.kept[f"{number} {name.partition(' ')[2]}"] = restored
    world.record("restore")
    # Rows may have expired since the backup.
    world.tick()
    check_all(world)
