"""Operations with backups and the archive: taken while the server runs, and restored into an empty directory."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from aio_client import BackupFailed, UsageError
from streaming_server.engine.backups.restore import restore_all
from streaming_server.engine.backups.restore_plan import plan_backup, plan_instant
from streaming_server.storage.backup.backup_manifest import read_manifest
from streaming_server.storage.backup.verify import verify
from tests.model.checker.operation import Arguments, define
from tests.model.checker.reads import check_all
from tests.model.checker.world import Backup
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from random import Random

    from aio_client import BackupStatus
    from streaming_server.engine.backups.restore_plan import RestorePlan
    from tests.model.checker.world import CheckerWorld, Kept


def _draw_backup(world: CheckerWorld, random: Random) -> Arguments | None:
    return {"as": f"b{world.next_number()}"} if world.tables and random.random() < 0.5 else None


@define("backup", 0.7, _draw_backup)
def _back_up(world: CheckerWorld, arguments: Arguments) -> None:
    if not world.tables:
        return
    _wait_archived(world)
    done = wait_until(lambda: _create_backup(world), "a backup was created")
    assert done is not None
    world.backups[arguments["as"]] = Backup(deepcopy(world.tables), _consumers(world), id=done.backup_id)
    world.record("backup")


def _create_backup(world: CheckerWorld) -> BackupStatus | None:
    try:
        return world.client.create_backup()
    except BackupFailed:
        return None  # The server may be creating one by itself, after a gap in the archive.


def _consumers(world: CheckerWorld) -> dict[str, Kept]:
    numbers = {table.number for table in world.tables.values()}
    return {
        name: deepcopy(kept) for name, kept in world.kept.items() if kept.kind == "consumer" and kept.table in numbers
    }


def _draw_instant(world: CheckerWorld, _random: Random) -> Arguments | None:
    return {"as": f"i{world.next_number()}"} if world.backups else None


@define("keep_instant", 1, _draw_instant)
def _keep_instant(world: CheckerWorld, arguments: Arguments) -> None:
    if not world.backups:
        return
    _wait_archived(world)
    if not world.archives:
        return
    world.backups[arguments["as"]] = Backup(deepcopy(world.tables), _consumers(world), micros=world.now_micros())
    world.record("keep_instant")


def _wait_archived(world: CheckerWorld) -> None:
    """Waits for the backup that the server creates by itself if the archive has a gap, and for the archive after it."""
    if world.backups and not world.archives:
        now = world.now_micros()
        wait_until(lambda: reaches(world, now), "everything was archived")
        # The next start continues the archive only if this server has stored a segment, and so after a write.
        world.archives = (world.server.data_dir / "archived.json").exists()


def reaches(world: CheckerWorld, micros: int) -> bool:
    """Returns whether the archive reaches an instant."""
    try:
        plan_instant(world.store, micros)
    except UsageError:
        return False
    return True


def _draw_restore(world: CheckerWorld, random: Random) -> Arguments | None:
    return {"backup": random.choice(sorted(world.backups))} if world.backups else None


@define("restore", 0.5, _draw_restore, effects=("restore", "restore_instant"))
def _restore(world: CheckerWorld, arguments: Arguments) -> None:
    backup = world.backups.get(arguments["backup"])
    if backup is None:
        return
    assert world.server.stop() == 0
    plan = _plan(world, backup)
    _must_not_restore_into_a_used_directory(world, plan)
    data = world.new_directory()
    result = restore_all(world.store, plan, data)
    assert not result.left_out
    assert {each.name: each.why for each in result.tables} == dict.fromkeys(backup.tables, "")
    world.disk = None
    world.serve_again(data)
    _continue_from(world, backup)
    world.record("restore_instant" if backup.micros else "restore")
    # Rows may have expired since the backup.
    world.tick()
    check_all(world)


def _plan(world: CheckerWorld, backup: Backup) -> RestorePlan:
    if not backup.micros:
        assert (problems := verify(world.store, [backup.id])) == {backup.id: []}, problems
        return plan_backup(read_manifest(world.store, backup.id))
    # The server has archived its last write. If the instant is later than that, nothing was written in between.
    return plan_instant(world.store, backup.micros if reaches(world, backup.micros) else None)


def _must_not_restore_into_a_used_directory(world: CheckerWorld, plan: RestorePlan) -> None:
    try:
        restore_all(world.store, plan, world.server.data_dir)
    except UsageError:
        return
    raise AssertionError("all tables were restored into a directory that has some")


def _continue_from(world: CheckerWorld, backup: Backup) -> None:
    """Makes the models those of a backup, with other numbers: what was kept of the tables is not taken any more."""
    world.tables = deepcopy(backup.tables)
    numbers = {table.number: world.renumber(table) for table in world.tables.values()}
    for name, consumer in backup.consumers.items():
        restored = deepcopy(consumer)
        restored.table = numbers[consumer.table]
        # The archive has the position at the end of each segment. It may lack that of the instant, and have one before.
        restored.value = "restored or gone" if backup.micros else "restored"
        world.kept[f"{restored.table} {name.partition(' ')[2]}"] = restored
