"""Operations that damage the files of a bucket, and recover what is left with `scankv check --offline --recover`."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

from aio_client import StartFrom, StopAt
from tests.model.checker.disk import forget_instants
from tests.model.checker.drawing import LOG, table_of
from tests.model.checker.model import exact, show
from tests.model.checker.open_transactions import give_up, open_ones
from tests.model.checker.operation import Arguments, define
from tests.model.checker.passing_time import passing
from tests.model.checker.reads import check_all
from tests.model.checker.world import changes_by_key
from tests.support.forked import run_forked

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from tests.model.checker.model import CheckerTable, Position
    from tests.model.checker.world import CheckerWorld


def _draw_damage(world: CheckerWorld, random: Random) -> Arguments | None:
    # Of the others, it is not known which partitions and which rows without changes were lost.
    table = table_of(world, random, (LOG,))
    if table is None:
        return None
    # If its durable watermark is lost, too, a bucket looks like one that was never opened.
    how = random.choice(["cut log", "cut log", "lost bucket"])
    return {"table": table.name, "how": how, "bucket": random.random(), "left": round(random.random(), 2)}


@define("damage", 0.5, _draw_damage)
def _damage(world: CheckerWorld, arguments: Arguments) -> None:
    table = world.tables.get(arguments["table"])
    # Where rows expire, the time of a lost write would decide about them, and a restored consumer is not accepted yet.
    if table is None or table.ttl is not None or any(each.value is not None for each in _consumers(world, table)):
        return
    for name, open_ in open_ones(world).items():
        if table.number in open_.tables:
            give_up(world, name)  # It is not promised what becomes of it.
    world.server.kill()
    forget_instants(world)
    # What the damage and the recovery change is not recorded.
    world.disk, world.archives = None, False
    directory = world.server.data_dir / "tables" / table.name.replace(".", "/")
    found = [
        path for each in ("buckets", "tablets/*/buckets") for path in sorted(directory.glob(f"{each}/[0-9]*[0-9]"))
    ]
    for bucket in found[int(arguments["bucket"] * len(found)) :][:1]:
        _break(bucket, arguments["how"], arguments["left"])
    command = [*passing(world.ahead_file), sys.executable, "-m", "scankv", "check", "--offline"]
    done = run_forked(*command, str(world.server.data_dir), "--recover")
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    world.serve_again()
    _lose(world, table)
    world.record("damage", table)
    check_all(world)


def _consumers(world: CheckerWorld, table: CheckerTable) -> list[Any]:
    return [each for each in world.kept.values() if each.kind == "consumer" and each.table == table.number]


def _break(bucket: Path, how: str, left: float) -> None:
    if how == "cut log":
        # Without a log, nothing was written since the bucket was opened.
        for log in sorted(path for path in bucket.glob("*.log") if path.stat().st_size)[-1:]:
            os.truncate(log, int(left * log.stat().st_size))
        return
    shutil.rmtree(bucket)


def _lose(world: CheckerWorld, table: CheckerTable) -> None:
    """Takes from the model what the recovery has lost: of each key, its last changes."""
    found = changes_by_key(world.table(table.name).changes(StartFrom.EARLIEST, StopAt.LATEST).to_pylist())
    assert found.keys() <= table.changes.keys()
    left = {key: len(found.get(key, ())) for key in table.changes}
    for key, count in left.items():
        expected = [(kind, show(table.columns, key, values)) for kind, values in table.changes[key][:count]]
        assert exact(found.get(key, [])) == exact(expected), (
            f"key {key}: found {found.get(key)}, which is not the first of {expected}"
        )
    lost = {key for key, count in left.items() if count < len(table.changes[key])}
    table.truncate_changes(left)
    for name, kept in list(world.kept.items()):
        if kept.table != table.number:
            continue
        if kept.kind in ("offsets", "consumer", "changes"):
            kept.is_lost |= any(kept.position.get(key, (0, 0))[1] > left[key] for key in lost)
        elif kept.kind in ("mirror", "lake"):
            kept.is_lost |= bool(lost)
        if kept.kind in ("time", "consumer"):
            kept.position, *kept.earlier = [_within(left, each) for each in (kept.position, *kept.earlier)]
        if kept.kind == "writer" and lost:
            kept.table = 0  # It belongs to no table any more.
        elif kept.kind == "writer" or (kept.kind == "scan" and not table.has_key):
            # A scan without a key continues at a place that others may have now.
            del world.kept[name]


def _within(left: dict[int, int], position: Position) -> Position:
    """Returns a position that has seen no changes which were lost."""
    return {key: (min(a, left.get(key, a)), min(b, left.get(key, b))) for key, (a, b) in position.items()}
