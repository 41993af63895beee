"""An operation during which the server dies before some change of its disk, or the disk fails from then on.

The other operation happens completely, or not at all.
"""

from __future__ import annotations

import threading
import time
from copy import deepcopy
from typing import TYPE_CHECKING, Final

from aio_client import BackupFailed, ConnectionFailed, DiskFailed, DiskFull, ServerRefused, TransactionLost
from tests.model.checker.operation import OPERATIONS, Arguments, define
from tests.model.checker.reads import check_all
from tests.support.failing_disk import BROKEN, DEADLY, FULL, FULL_AT_SYNC, OVER_QUOTA, READ_ONLY, DiskFault

if TYPE_CHECKING:
    from random import Random

    from tests.model.checker.model import CheckerTable
    from tests.model.checker.world import CheckerWorld

_FAULTS: Final = {each.name: each for each in (DEADLY, FULL, FULL_AT_SYNC, OVER_QUOTA, BROKEN, READ_ONLY)}
_MOST_CHANGES: Final = (3, 15, 60)
_LONGEST_FAULT_SECONDS: Final = 10.0
"""The build of an index waits for a disk that works again."""
_WHOLE: Final = (
    *("create", "create_partitioned", "create_log", "drop", "drop_index", "drop_column", "widen_column"),
    *("rename_columns", "add_column", "set_default", "set_comment", "reorder_columns", "add_index", "set_changelog"),
    *("create_partition", "drop_partition", "bootstrap", "transaction", "truncate", "replace"),
    *("delete_where", "pin", "alter_together"),
)
"""The operations that are one for the server: a refusal says that nothing has happened, or all of it may have."""
_REPEATED: Final = (
    *("upsert", "upsert_columns", "delete", "upsert_untracked", "delete_range", "write_through_writer", "undo"),
    *("write_through_kept_table", "stage", "finish_transaction", "consume", "backup", "let_pass"),
)
"""Those that a client repeats when the server is back, so that they must happen."""
_REFUSALS: Final = (ConnectionFailed, DiskFull, DiskFailed, BackupFailed)


def _draw(world: CheckerWorld, random: Random) -> Arguments | None:
    if world.disk is not None:  # as in `draw_cut`
        return None
    fault = random.choice([DEADLY.name] * len(_FAULTS) + [*_FAULTS])
    names = _WHOLE + _REPEATED if fault == DEADLY.name else _WHOLE
    operation = random.choices([OPERATIONS[name] for name in names], [OPERATIONS[name].weight for name in names])[0]
    arguments = operation.draw(world, random)
    if arguments is None or not _is_one(operation.name, arguments):
        return None
    after = random.randrange(random.choice(_MOST_CHANGES))
    return {"step": [operation.name, arguments], "fault": fault, "after": after}


def _is_one(name: str, arguments: Arguments) -> bool:
    """Returns whether an operation makes one call: it may change a changelog by way of "none", or write rows, too."""
    return not arguments.get("removes") and not (name == "alter_together" and arguments["rows"])


@define("fail_during", 12, _draw)
def _fail_during(world: CheckerWorld, arguments: Arguments) -> None:
    if world.disk is not None:
        return
    fault, (name, step) = _FAULTS[arguments["fault"]], arguments["step"]
    if fault != DEADLY and any(table.ttl is not None for table in world.tables.values()):
        return  # as in `write_together`
    before, is_whole = deepcopy(world.tables), _run(world, fault, arguments["after"], name, step)
    if fault != DEADLY:
        world.server.kill()
        world.serve_again()
    if not is_whole:
        _settle(world, before)
    if name == "drop":
        for kept in world.kept.values():
            # It may have heard of the drop before that failed.
            kept.is_lost |= kept.kind == "mirror" and kept.name == step["table"]
    world.record("fail_during")
    check_all(world)


def _run(world: CheckerWorld, fault: DiskFault, after: int, name: str, step: Arguments) -> bool:
    """Runs an operation until the disk works again. Returns whether it has certainly happened."""
    is_over, process, records = threading.Event(), world.server.process, world.records

    def revive() -> None:
        heals_at = time.monotonic() + _LONGEST_FAULT_SECONDS
        while not is_over.wait(0.01):
            _serve_if_dead(world)
            if fault != DEADLY and time.monotonic() > heals_at:
                world.failing_disk.heal()

    reviving = threading.Thread(target=revive)
    world.failing_disk.fail(fault, after)
    reviving.start()
    try:
        OPERATIONS[name].run(world, step)
    except _REFUSALS:
        # What was answered has happened, even if the comparison that followed broke off.
        return world.records > records
    except TransactionLost:
        # A worker process that dies while a transaction begins has no part in it.
        assert world.workers > 1, "a transaction is lost"
        return False
    finally:
        has_failed = world.failing_disk.has_failed
        world.failing_disk.heal()
        is_over.set()
        reviving.join()
        if fault == DEADLY and has_failed:
            if world.workers == 1:
                process.wait()
            else:
                world.ended_workers += 1
        _serve_if_dead(world)
        world.client.wait_ready()
    return True


def _serve_if_dead(world: CheckerWorld) -> None:
    if world.server.process.poll() is not None:
        world.server.restart()


def _settle(world: CheckerWorld, before: dict[str, CheckerTable]) -> None:
    """Makes the models what they were before an operation, unless it has happened."""
    try:
        check_all(world)
    except (AssertionError, ServerRefused) as first:
        world.tables = before
        try:
            check_all(world)
        except (AssertionError, ServerRefused) as second:
            raise AssertionError(f"neither all of it has happened: {first}\nnor nothing: {second}") from second
