"""Which commits of transactions a data directory remembers after a restore, so that none is applied twice or lost.

Rule: a commit is remembered only if all of its tables have its rows. A restored table has those up to its instant. A
table that was in the directory before has what it had. A table that was dropped before the backup does not count.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from scankv.model.errors import DataLoss
from scankv.model.names import table_of
from scankv.model.tables.schema import incarnation_of
from streaming_server.engine.transactions.worker_logs import is_remembered_by
from streaming_server.storage.tables.placement import ALONE, Placement
from streaming_server.storage.transactions.decisions import CommittedTransaction, record_of, with_incarnations
from streaming_server.storage.transactions.transaction_log import TransactionLog

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from streaming_server.engine.backups.restore import RestoredTable
    from streaming_server.engine.backups.restore_plan import RestorePlan
    from streaming_server.storage.tables.catalog import Catalog
    from streaming_server.storage.tables.data_directory import DataDirectory


def write_transactions(
    directory: DataDirectory,
    catalog: Catalog,
    plan: RestorePlan,
    incarnations: Mapping[str, str],
    restored: Sequence[RestoredTable],
    service_micros: int,
    *,
    keeps_offsets: bool = True,
) -> None:
    """Makes a data directory remember, durably, the commits whose rows the restored tables have.

    Call it before the tables are in the directory: a table without its commits would get repeated transactions again.
    The directory forgets the commits of a dropped table of the same name, because their rows are gone. If a transaction
    log of the directory is damaged, no server can commit transactions, so nothing is written to this log.

    Args:
        directory: The data directory, which no server uses.
        catalog: Its tables, without the restored ones.
        plan: What is restored.
        incarnations: The new incarnation of each table, by its name in the backup.
        restored: The restored tables. Those with another name than in the backup have no commits: a transaction that is
            repeated writes to the table of the old name.
        service_micros: The service time with which the next server on the directory begins. The commits keep their age.
        keeps_offsets: Whether the restored tables have the log offsets of the backup.

    Raises:
        DiskFull, DiskFailed, OSError: A log cannot be written. It is unchanged.
    """
    known = {each.name: each.micros for each in restored if each.restored_as == each.name}
    committed = _commits(catalog, plan, known, incarnations, service_micros)
    if not keeps_offsets:
        committed = [{**each, "log_offsets": {name: {} for name in each["log_offsets"]}} for each in committed]
    logs = {Placement(number, directory.workers): part for number, part in enumerate(directory.parts())}
    for place, path in (logs or {ALONE: directory.path}).items():
        own = [each for each in committed if is_remembered_by(place, each["tables"])]
        with suppress(DataLoss), closing(TransactionLog(path / "transactions")) as log:
            _extend(log, plan.manifest.epoch, known.keys(), own)


def _commits(
    catalog: Catalog, plan: RestorePlan, known: Mapping[str, int], incarnations: Mapping[str, str], service_micros: int
) -> list[dict[str, Any]]:
    """Returns the commits of the backup whose rows the directory will have, as they are there."""
    service_shift = service_micros - max((each.service_micros for each in plan.sources.values()), default=0)
    new: dict[str, str] = {}
    # The instant up to which the directory will have the rows of an incarnation.
    reached = dict.fromkeys((each.definition.incarnation for each in plan.manifest.tables), 0)
    for name, source in plan.sources.items():
        for each in (source, source.otherwise):
            if each is not None:
                reached[each.table.definition.incarnation] = known.get(name, 0)
                if name in known:
                    new[each.table.definition.incarnation] = incarnations[name]

    def has_rows(name: str, incarnation: str, micros: int) -> bool:
        return catalog.has(name, incarnation) or micros <= reached.get(incarnation_of(incarnation), plan.micros)

    return [
        {**with_incarnations(each, new), "served_micros": max(0, each["served_micros"] + service_shift)}
        for each in plan.manifest.committed
        if each["micros"] <= plan.micros
        and all(has_rows(name, old, each["micros"]) for name, old in each["tables"].items())
    ]


def _extend(log: TransactionLog, epoch: int, names: Collection[str], committed: Sequence[dict[str, Any]]) -> None:
    """Adds commits to a log, and removes its earlier commits to tables of these names.

    Rule: the log uses no number twice, and its last commit of a family stays the last one.
    """
    records, next_number = list[dict[str, Any]](), 0
    applied = {each["done"]["token"] for each in log.records if "done" in each}
    for record in log.records:
        if "log" in record:
            epoch, next_number = record["log"]["epoch"], max(next_number, record["log"]["next"])
            continue
        if "undone" not in record:
            (kind,) = record.keys() & {"decided", "prepared", "done"}
            value = record[kind]
            next_number = max(next_number, value["number"] + 1)
            is_gone = kind == "done" and any(table_of(name) in names for name in value["tables"])
            if is_gone or (kind != "done" and value["token"] in applied):
                continue
        records.append(record)
    if log.records:
        # Of other commits, the log knows more than the backup.
        committed = [each for each in committed if any(table_of(name) in names for name in each["tables"])]
    remembered = [CommittedTransaction.from_json(each["done"]) for each in records if "done" in each]
    last = {each.family: each.micros for each in sorted(remembered, key=lambda each: each.micros) if each.family}
    added = [each for each in committed if each["micros"] > last.get(each["id"].rpartition(":")[0], -1)]
    if not added and len(records) == sum("log" not in each for each in log.records):
        return
    records += [record_of("done", {**each, "number": next_number + index}) for index, each in enumerate(added)]
    head = {"log": {"epoch": epoch, "next": next_number + len(added)}}
    log.rewrite([head, *records])
