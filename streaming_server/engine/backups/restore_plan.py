"""From which backup each table is restored, and what the archive adds to it: all as in one backup, or as of an instant.

A table is restored as of an instant from the last backup before it, and what the archive says was written since. So the
restore is exact to the commit, and a transaction is restored in all of its tables or in none.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from scankv.model.errors import DataLoss, TableNotFound, UsageError, did_you_mean
from scankv.model.tables.schema import incarnation_of
from streaming_server.engine.backups.replay import ArchivedLog
from streaming_server.engine.backups.stored_consumers import consumers_by_part
from streaming_server.storage.backup.archive_segment import reached_micros, read_segments
from streaming_server.storage.backup.backup_manifest import BackupManifest, StoredTable, read_backup
from streaming_server.storage.backup.backup_store import instant_id
from streaming_server.storage.backup.stored_fields import translate_unusable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streaming_server.clock import StoredTimes
    from streaming_server.storage.backup.archive_segment import ArchiveSegment, LogPiece
    from streaming_server.storage.backup.backup_store import BackupStore
    from streaming_server.storage.tables.consumers import ConsumerRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """How one table is restored.

    Attributes:
        table: The table in its backup, with its definition and its consumers at the instant.
        micros: The instant that the restored table is of, in microseconds since 1970 UTC.
        service_micros: The service time of the server at that instant, or earlier.
        logs: What was written since the backup, by bucket.
        otherwise: How it is restored if the archive does not suffice for that. None: not at all.
        why: Why it is not restored as of the instant that was asked for. Empty: it is.
        later_consumers: The consumers that were created after the instant, as far as the archive shows that.
    """

    table: StoredTable
    micros: int
    service_micros: int
    logs: Mapping[int, ArchivedLog] = field(default_factory=dict)
    otherwise: TableSource | None = None
    why: str = ""
    later_consumers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """How tables are restored.

    Attributes:
        manifest: The backup that has the clock and the commits of transactions.
        micros: The instant, in microseconds since 1970 UTC.
        sources: How each table is restored, by name, ascending.
        left_out: Why tables cannot be restored, by name.
    """

    manifest: BackupManifest
    micros: int
    sources: Mapping[str, TableSource]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def source(self, name: str) -> TableSource:
        """Returns how a table is restored. Raises TableNotFound, which suggests similar names or says why it is not."""
        if name in self.left_out:
            raise TableNotFound(f'the table "{name}" cannot be restored: {self.left_out[name]}', table=name)
        if name not in self.sources:
            similar = did_you_mean(name, self.sources)
            raise TableNotFound(f'the backup {self.manifest.backup_id} has no table "{name}"{similar}', table=name)
        return self.sources[name]


def plan_backup(manifest: BackupManifest) -> RestorePlan:
    """Plans to restore tables as they are in one backup."""
    sources = {table.name: _in_backup(manifest, table) for table in manifest.tables}
    left_out = {name: f"the backup {manifest.backup_id} lacks it: {why}" for name, why in manifest.left_out.items()}
    return RestorePlan(manifest=manifest, micros=manifest.micros, sources=sources, left_out=left_out)


def plan_instant(store: BackupStore, micros: int | None) -> RestorePlan:
    """Plans to restore tables as of an instant.

    Args:
        store: The location.
        micros: The instant, in microseconds since 1970 UTC. None: the last one that the archive reaches.

    Raises:
        UsageError: No backup is earlier, or the archive does not reach so far.
        DataLoss: The manifest of a backup, or a segment of the archive, is missing or cannot be read.
    """
    with translate_unusable(f"the archive in {store.shown}"):
        return _plan_instant(store, micros)


def _plan_instant(store: BackupStore, micros: int | None) -> RestorePlan:
    before = _backup_before(store, micros)
    segments = read_segments(store, before.micros)
    reached = max(reached_micros(store, before.micros) - 1, before.micros)
    if micros is None:
        micros = reached
    if micros > reached:
        raise UsageError(
            f"the archive reaches up to {instant_text(reached)}, and not up to {instant_text(micros)}: give "
            "--as-of an earlier instant, or `--as-of latest`"
        )
    needed = [segment for segment in segments if segment.since_micros <= micros]
    _check_chain(needed, before)
    return _plan(before, needed, segments[len(needed) :], micros)


def archive_reach(store: BackupStore, newest: BackupManifest) -> int | None:
    """Returns the last instant as of which tables can be restored. None: nothing is archived after the newest backup.

    Raises:
        DataLoss, NewerFormat: The last segment of the archive cannot be read.
    """
    reached = reached_micros(store, newest.micros) - 1
    return reached if reached > newest.micros else None


def _backup_before(store: BackupStore, micros: int | None) -> BackupManifest:
    known = store.manifests()
    for backup_id in reversed(known):
        # Ids ascend with the time, so a later backup need not be readable.
        if micros is None or backup_id <= instant_id(micros):
            return read_backup(store, backup_id)
    oldest = "no backup exists"
    if known:
        oldest = f"the oldest backup is as of {instant_text(read_backup(store, known[0]).micros)}"
    raise UsageError(f"a restore as of an instant needs a backup before it, and {oldest}: give a later instant")


def _check_chain(segments: Sequence[ArchiveSegment], before: BackupManifest) -> None:
    """Raises DataLoss if a segment is missing."""
    previous = ""
    for number, segment in enumerate(segments):
        is_first = number == 0 and segment.previous <= instant_id(before.micros)
        if not is_first and segment.previous != previous:
            raise DataLoss(
                f"the archive is incomplete: its segment {segment.previous} is missing; restore as of an instant "
                f"before it, or the backup {before.backup_id}"
            )
        previous = segment.segment_id


def _plan(
    before: BackupManifest, segments: Sequence[ArchiveSegment], later: Sequence[ArchiveSegment], micros: int
) -> RestorePlan:
    tables = {table.definition.incarnation: table for table in before.tables}
    times, committed = before.times, {each["token"]: each for each in before.committed}
    later_consumers: dict[str, frozenset[str]] = {}
    for segment in segments:
        for change in segment.changes:
            if change.micros > micros:
                continue
            if change.definition is None:
                tables.pop(change.incarnation, None)
            else:
                empty = StoredTable(definition=change.definition, states={}, files=())
                known = tables.get(change.incarnation, empty)
                tables[change.incarnation] = replace(known, definition=change.definition)
        for incarnation, found in segment.consumers.items():
            if (table := tables.get(incarnation_of(incarnation))) is not None:
                consumers = consumers_by_part(table)
                consumers[incarnation] = _consumers(consumers.get(incarnation, ()), found, segment, micros)
                unknown = {one.consumer_id for one in found} - {one.consumer_id for one in consumers[incarnation]}
                later_consumers[incarnation] = frozenset(unknown)
                tables[table.definition.incarnation] = replace(table, consumers=tuple(chain(*consumers.values())))
        times = segment.times
        committed |= {each["token"]: each for each in segment.committed if each["micros"] <= micros}
    lacking = {**segments[-1].left_out} if segments else {}
    late = {table: _late_segments(table, segments[-1], later) for table in lacking}
    lacking = {table: why for table, why in lacking.items() if not late[table]}
    for segment in (segment for found in late.values() for segment in found):
        committed |= {each["token"]: each for each in segment.committed if each["micros"] <= micros}
    for segment in segments:
        lacking |= {table: gap.why for table, gap in segment.gaps.items() if gap.micros > before.micros}
    if segments and segments[-1].gap_micros > micros:
        gap = f"it has a gap up to the backup as of {instant_text(segments[-1].gap_micros)}"
        lacking |= dict.fromkeys(tables, gap)
    sources: dict[str, TableSource] = {}
    left_out = {**before.left_out}
    for table in sorted(tables.values(), key=lambda table: table.name):
        logs = _logs(table.definition.incarnation, [*segments, *late.get(table.definition.incarnation, ())], micros)
        source = _source(before, table, logs, micros, _service_micros(times, micros))
        unknown_in_parts = (later_consumers.get(part.incarnation, frozenset()) for part in table.definition.parts)
        source = replace(source, later_consumers=frozenset(chain(*unknown_in_parts)))
        why = lacking.get(table.definition.incarnation)
        if why is not None and source.otherwise is None:
            left_out[table.name] = f"the archive lacks writes: {why}"
            continue
        if why is not None and source.otherwise is not None:
            source = replace(source.otherwise, why=f"the archive lacks writes: {why}")
        sources[table.name] = source
        left_out.pop(table.name, None)
    manifest = replace(before, times=times, committed=tuple(committed.values()))
    return RestorePlan(manifest=manifest, micros=micros, sources=sources, left_out=left_out)


def _late_segments(incarnation: str, last: ArchiveSegment, later: Sequence[ArchiveSegment]) -> Sequence[ArchiveSegment]:
    """Returns the segments up to the first that has what `last` leaves out of a table; none if the archive lacks it.

    A bucket that lacks rows of a committed transaction is left out. It is not written to before it has them.
    """
    previous = last.segment_id
    for number, segment in enumerate(later, 1):
        if segment.previous != previous or segment.gap_micros or incarnation in segment.gaps:
            break
        if incarnation not in segment.left_out:
            return later[:number]
        previous = segment.segment_id
    return ()


def _consumers(
    known: Sequence[ConsumerRecord], found: Sequence[ConsumerRecord], segment: ArchiveSegment, micros: int
) -> tuple[ConsumerRecord, ...]:
    """Returns the consumers at an instant, given those before a segment and those in it."""
    # Later positions would be beyond the rows that are restored.
    current = {one.consumer_id: one for one in found if not one.is_later_than(micros)}
    remaining = {one.consumer_id for one in found}
    is_past = segment.micros <= micros
    before = {one.consumer_id: one for one in known if not is_past or one.consumer_id in remaining}
    return tuple((before | current).values())


def _source(
    before: BackupManifest, table: StoredTable, logs: Mapping[int, ArchivedLog], micros: int, service_micros: int
) -> TableSource:
    incarnation = table.definition.incarnation
    in_backup = next((each for each in before.tables if each.definition.incarnation == incarnation), None)
    otherwise = None if in_backup is None else _in_backup(before, in_backup)
    return TableSource(table=table, micros=micros, service_micros=service_micros, logs=logs, otherwise=otherwise)


def _in_backup(manifest: BackupManifest, table: StoredTable) -> TableSource:
    service_micros = _service_micros(manifest.times, manifest.micros)
    return TableSource(table=table, micros=manifest.micros, service_micros=service_micros)


def _service_micros(times: StoredTimes, micros: int) -> int:
    """Returns the service time at an instant before some times, or an earlier one if no server ran in between."""
    return max(0, times.service // 1000 - max(0, times.commit // 1000 - micros))


def _logs(incarnation: str, segments: Sequence[ArchiveSegment], micros: int) -> dict[int, ArchivedLog]:
    logs: dict[int, ArchivedLog] = {}
    for segment in segments:
        for number, bucket in segment.buckets.get(incarnation, {}).items():
            known = logs.get(number, ArchivedLog(families=bucket.families, pieces=(), doubtful={}))
            doubtful = _starts(bucket.pieces) if segment.ended_micros > micros else {}
            logs[number] = replace(known, pieces=known.pieces + bucket.pieces, doubtful={**doubtful, **known.doubtful})
    return logs


def _starts(pieces: Sequence[LogPiece]) -> dict[int, int]:
    starts: dict[int, int] = {}
    for piece in pieces:
        starts[piece.log] = min(piece.start, starts.get(piece.log, piece.start))
    return starts


def instant_text(micros: int) -> str:
    """Returns an instant for people."""
    return f"{dt.datetime.fromtimestamp(micros / 1e6, dt.UTC):%Y-%m-%d %H:%M:%S.%f} UTC"
