"""Operations with transactions that stay open: other steps come between what they read, stage and commit."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aio_client import InvalidRequest, LockTimeout, TableNotFound, TransactionConflict, TransactionLost
from tests.model.checker.drawing import KEYED, keys_of, rows_of, table_of
from tests.model.checker.model import KEY, CheckerColumn, CheckerTable, Position
from tests.model.checker.operation import Arguments, define
from tests.model.checker.world import SLACK_SECONDS, Kept, by_key, compare
from tests.model.checker.writers import translate
from tests.model.checker.writes import fits

if TYPE_CHECKING:
    from random import Random

    from aio_client.sync import Transaction
    from tests.model.checker.world import CheckerWorld

_MOST_OPEN = 3
_TTL = 604_800.0
_REFUSALS = (TableNotFound, InvalidRequest)


@dataclass(frozen=True)
class _Staged:
    """What one request stages: keys to delete, then rows with the columns that the table had."""

    columns: tuple[CheckerColumn, ...]
    keys: list[int]
    rows: list[dict[str, Any]]


@dataclass
class _Open:
    """An open transaction.

    Attributes:
        transaction: The transaction.
        finds_conflicts: Whether it is refused if others have changed the keys that it writes.
        locks_keys: Whether it locks its keys.
        life: Where, in which processes and until when it lives.
        tables: The name of each table that it uses, by its number.
        staged: What it writes to each table.
        reads: The keys of each table that it has read for update, and the position before that.
        first: The position before its first write of each table.
        locked: The keys of each table that it has locked.
    """

    transaction: Transaction
    finds_conflicts: bool
    locks_keys: bool
    life: tuple[str, str, float]
    tables: dict[int, str] = field(default_factory=dict)
    staged: defaultdict[int, list[_Staged]] = field(default_factory=lambda: defaultdict(list))
    reads: defaultdict[int, dict[int, Position]] = field(default_factory=lambda: defaultdict(dict))
    first: dict[int, Position] = field(default_factory=dict)
    locked: set[tuple[int, int]] = field(default_factory=set)

    def may_be_lost(self, world: CheckerWorld) -> bool:
        """Returns whether the server need not know it any more. Locks are lost with the process."""
        data, processes, _ = _life(world)
        is_elsewhere = data != self.life[0] or (self.locks_keys and processes != self.life[1])
        return is_elsewhere or world.now() - self.life[2] > _TTL / 2

    def is_whole(self, world: CheckerWorld) -> bool:
        """Returns whether all its tables still exist."""
        return all(
            (table := world.tables.get(name)) is not None and table.number == number
            for number, name in self.tables.items()
        )

    def outcome(self, table: CheckerTable) -> CheckerTable:
        """Returns a table as the commit would leave it. `written` has the keys that it writes."""
        after = table.branch()
        for staged in self.staged[table.number]:
            after.delete(staged.keys)
            after.upsert([translate(table, staged.columns, row) for row in staged.rows])
        return after

    def conflicts(self, table: CheckerTable) -> set[bool]:
        """Returns whether others have changed a key that it depends on: both, if that depends on the server's pace."""
        depends = [*self.reads[table.number].items()]
        if self.finds_conflicts and table.number in self.first:
            written = {key for staged in self.staged[table.number] for key in _keys_of(staged)}
            depends += [(key, self.first[table.number]) for key in written]
        changed = [table.changed(key, position) for key, position in depends]
        return {True} if {True} in changed else {False, any(True in each for each in changed)}


def _keys_of(staged: _Staged) -> list[int]:
    return [*staged.keys, *(row[KEY] for row in staged.rows)]


def _life(world: CheckerWorld) -> tuple[str, str, float]:
    # Another number of workers divides the directory again, which loses open transactions.
    processes = f"{world.server.process.pid}, {world.ended_workers}"
    return f"{world.server.data_dir}, {world.workers}", processes, world.now()


def open_ones(world: CheckerWorld) -> dict[str, _Open]:
    """Returns the open transactions, by their name in `CheckerWorld.kept`."""
    return {name: kept.value for name, kept in world.kept.items() if kept.kind == "transaction"}


def _draw_begin(world: CheckerWorld, random: Random) -> Arguments | None:
    if len(open_ones(world)) >= _MOST_OPEN:
        return None
    conflict, lock = random.choice(["last_wins", "abort"]), random.choice([None, None, "keys"])
    return {"conflict": conflict, "lock": lock, "as": f"x{world.next_number()}"}


# It has no effect on a table before something is staged.
@define("begin_transaction", 1.5, _draw_begin, effects=())
def _begin_transaction(world: CheckerWorld, arguments: Arguments) -> None:
    lock = arguments["lock"]
    transaction = world.client.transaction(
        conflict=arguments["conflict"], ttl=_TTL, lock=lock, lock_timeout=None if lock is None else 0
    )
    value = _Open(transaction, arguments["conflict"] == "abort", lock is not None, _life(world))
    world.kept[arguments["as"]] = Kept("transaction", 0, "", value)


def _draw_stage(world: CheckerWorld, random: Random) -> Arguments | None:
    table, open_ = table_of(world, random, KEYED), open_ones(world)
    if table is None or not open_:
        return None
    return {
        "kept": random.choice(sorted(open_)),
        "table": table.name,
        "for_update": random.choice([[], keys_of(random)]),
        "delete": random.choice([[], keys_of(random)]) if table.engine == "last_row" else [],
        "rows": random.choice([[], rows_of(table, random), rows_of(table, random)]),
    }


@define("stage", 5, _draw_stage)
def _stage(world: CheckerWorld, arguments: Arguments) -> None:
    kept, table = world.kept.get(arguments["kept"]), world.tables.get(arguments["table"])
    if kept is None or table is None or not fits(table, arguments["rows"], complete=True):
        return
    if arguments["delete"] and table.engine != "last_row":
        return
    open_: _Open = kept.value
    if not table.has_changes and (open_.finds_conflicts or arguments["for_update"]):
        return  # There is nothing to find conflicts in.
    is_recreated = table.name in open_.tables.values() and table.number not in open_.tables
    before = open_.life
    try:
        _stage_all(world, open_, table, arguments)
    except LockTimeout:
        wanted = {*arguments["for_update"], *arguments["delete"], *(row[KEY] for row in arguments["rows"])}
        others = {lock for other in open_ones(world).values() if other is not open_ for lock in other.locked}
        assert open_.locks_keys
        assert others & {(table.number, key) for key in wanted}, "keys are locked by no transaction"
        give_up(world, arguments["kept"])
        return
    except TransactionLost:
        assert replace(open_, life=before).may_be_lost(world), "an open transaction is lost"
        del world.kept[arguments["kept"]]
        return
    except _REFUSALS:
        # A power cut may take the last staged requests.
        if not is_recreated and not replace(open_, life=before).may_be_lost(world):
            raise
        give_up(world, arguments["kept"])
        return
    world.record("stage", table)


def _stage_all(world: CheckerWorld, open_: _Open, table: CheckerTable, arguments: Arguments) -> None:
    opened, transaction, rows = world.table(table.name), open_.transaction, arguments["rows"]
    for_update, deleted = arguments["for_update"], arguments["delete"]
    if for_update:
        found, shown = (
            by_key(transaction.get_for_update(opened, table.keys(for_update)).to_pylist()),
            table.view().shown(),
        )
        expected = {key: shown[key] for key in for_update if key in shown}
        compare(found, expected)
        open_.reads[table.number] = {**dict.fromkeys(for_update, table.position()), **open_.reads[table.number]}
    for keys, stage in ((deleted, transaction.delete), ([row[KEY] for row in rows], transaction.upsert)):
        if keys:
            stage(opened, table.keys(deleted) if stage == transaction.delete else rows)
            open_.first.setdefault(table.number, table.position())
            is_delete = stage == transaction.delete
            staged = _Staged(table.columns, deleted if is_delete else [], [] if is_delete else rows)
            open_.staged[table.number].append(staged)
    if for_update or deleted or rows:
        open_.tables[table.number] = table.name
        if open_.locks_keys:
            locked = {*for_update, *deleted, *(row[KEY] for row in rows)}
            open_.locked |= {(table.number, key) for key in locked}
            others = [each for each in open_ones(world).values() if each is not open_ and not each.may_be_lost(world)]
            assert not open_.locked & {lock for each in others for lock in each.locked}, (
                "a key is locked by two transactions"
            )
    # Another worker may have lost it all the same.
    open_.life = (*open_.life[:2], world.now())
    keys = list(range(0, 24, 2))
    after = open_.outcome(table).view().shown()
    inside = by_key(transaction.lookup(opened, table.keys(keys)).to_pylist())
    # After a power cut, it may lack what it has staged, and cannot be committed.
    if open_.life[0] == _life(world)[0]:
        compare(inside, {key: after[key] for key in keys if key in after})
    world.check(table.name)


def _draw_finish(world: CheckerWorld, random: Random) -> Arguments | None:
    open_ = open_ones(world)
    return {"kept": random.choice(sorted(open_)), "commit": random.random() < 0.8} if open_ else None


@define("finish_transaction", 2, _draw_finish, effects=("commit_transaction", "abort_transaction"))
def _finish_transaction(world: CheckerWorld, arguments: Arguments) -> None:
    """Commits or aborts a transaction, and compares its tables."""
    name = arguments["kept"]
    if name not in world.kept:
        return
    open_: _Open = world.kept[name].value
    tables = [world.tables[each] for number, each in open_.tables.items() if _is_there(world, each, number)]
    while any(not table.is_certain(SLACK_SECONDS, open_.outcome(table).rows.values()) for table in tables):
        world.let_pass(SLACK_SECONDS)
        world.tick()
    is_committed = arguments["commit"] and _commit(world, open_, tables)
    give_up(world, name)
    if is_committed:
        for table in tables:
            after = open_.outcome(table)
            table.possible |= after.possible
            # One net change of each key.
            for key in after.written:
                table.put(key, after.stored(key))
    world.record("commit_transaction" if is_committed else "abort_transaction", *tables)
    for table in tables:
        world.check(table.name)


def _is_there(world: CheckerWorld, name: str, number: int) -> bool:
    table = world.tables.get(name)
    return table is not None and table.number == number


def _commit(world: CheckerWorld, open_: _Open, tables: list[CheckerTable]) -> bool:
    """Commits a transaction, if it must not be refused. Returns whether it is committed."""
    conflicts = [open_.conflicts(table) for table in tables]
    try:
        open_.transaction.commit()
    except TransactionConflict:
        assert any(True in each for each in conflicts), "a transaction conflicts with nothing"
        return False
    except TransactionLost:
        assert open_.may_be_lost(world), "an open transaction is lost"
        return False
    except _REFUSALS:
        # A power cut may take the last staged requests.
        is_refusable = not open_.is_whole(world) or open_.may_be_lost(world)
        assert is_refusable, "the tables of a transaction exist, and it is refused"
        return False
    assert open_.is_whole(world), "a transaction is committed, although one of its tables was dropped"
    assert all(False in each for each in conflicts), "a transaction is committed in spite of a conflict"
    return True


def give_up(world: CheckerWorld, name: str) -> None:
    """Aborts a transaction, and forgets it."""
    open_: _Open = world.kept.pop(name).value
    if open_.transaction.result is None:
        open_.transaction.abort()
