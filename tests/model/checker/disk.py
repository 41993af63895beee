"""The disk that the server runs on: its changes are recorded, so that a power cut can take what was not synced."""

from __future__ import annotations

import atexit
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tests.model.checker.backups import reaches
from tests.model.checker.operation import Arguments, define
from tests.support.power_cut import RULES
from tests.support.recording_disk import RecordingDisk, compile_recorder

if TYPE_CHECKING:
    from random import Random

    from tests.model.checker.world import CheckerWorld


@cache
def _recorder() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="scankv-recorder-"))
    atexit.register(shutil.rmtree, directory)
    return compile_recorder(directory)


def _draw_record(_world: CheckerWorld, _random: Random) -> Arguments:
    return {}


@define("record_disk", 1, _draw_record)
def _record_disk(world: CheckerWorld, _arguments: Arguments) -> None:
    """Lets the server run on a recorded disk from now on, or on one that can fail again."""
    assert world.server.stop() == 0
    if world.disk is None:
        _record(world, world.server.data_dir)
    else:
        root, data = world.disk.root, world.new_directory()
        world.server.data_dir.rename(data)
        shutil.rmtree(root)
        world.disk = None
        world.serve_again(data)
    world.record("record_disk")


def _record(world: CheckerWorld, data: Path) -> None:
    directory = world.new_directory()
    directory.mkdir()
    world.disk = RecordingDisk(directory, _recorder(), data)
    world.serve_again(world.disk.root / data.name)


def draw_cut(world: CheckerWorld, random: Random) -> int | None:
    """Returns what decides how much a power cut leaves of what was not synced. None: there is no power cut.

    A recorded disk only has power cuts, since a kill could come between a change and its record.
    """
    return random.randrange(2**32) if world.disk is not None else None


def crash(world: CheckerWorld, cut: int | None) -> None:
    """Ends the server at once, by a kill or by a power cut, and starts it again."""
    world.server.kill()
    if cut is None or world.disk is None:
        world.serve_again()
        return
    forget_instants(world)
    chance, left, name = random.Random(cut), world.new_directory(), world.server.data_dir.name
    disk = world.disk.replay(chance.choice(RULES))
    # After its end, the server has answered nothing: whatever it has answered was synced before.
    disk.write(left, chance if chance.random() < 0.7 else None)
    shutil.rmtree(world.disk.root)
    _record(world, left / name)


def forget_instants(world: CheckerWorld) -> None:
    """Forgets the instants that are not archived: the name of the archive's last segment may be lost."""
    for name, backup in list(world.backups.items()):
        if backup.micros and not reaches(world, backup.micros):
            del world.backups[name]
