"""Merges the answers of the worker processes of a server, by their numbers, into the answer of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor

from scankv.v1 import admin_pb2, snapshot_pb2, table_pb2, transaction_pb2
from streaming_server.services.tablets.joined_snapshots import join_snapshots

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from google.protobuf.message import Message

_Answer = TypeVar("_Answer", bound="Message")

_LARGEST: Final = frozenset(
    {"uptime_millis", "longest_commit_micros", "longest_loop_turn_micros", "clock_offset_millis", "clock_jumps"}
)
_SMALLEST: Final = frozenset({"free_disk_bytes", "file_limit"})
_SUMS_OF_BASES: Final = (
    *("buckets", "bases", "rows", "disk_bytes", "changes_since", "delta_rows", "delta_bytes"),
    *("builds", "build_cpu_micros", "written_bytes"),
)
_NAMES: Final = {"tables": "name", "damaged": "name", "locks": "table", "snapshots": "table"}


def merge_lists(answers: Mapping[int, _Answer]) -> _Answer:
    """Returns one answer with the lists of all answers, in the order of a server of one process.

    That is the order of names, the oldest scan first, and the latest call first.
    """
    merged = type(answers[0])()
    for answer in answers.values():
        merged.MergeFrom(answer)
    if isinstance(merged, snapshot_pb2.ListSnapshotsResponse):
        joined = join_snapshots(merged.snapshots)
        del merged.snapshots[:]
        merged.snapshots.extend(joined)
    for field, items in merged.ListFields():
        if (name := _NAMES.get(field.name)) is not None:
            items.sort(key=lambda item, name=name: getattr(item, name))
        elif field.name == "scans":
            scans = sorted(merge_scans(items), key=lambda scan: -scan.age_millis)
            del items[:]
            items.extend(scans)
        elif field.name == "calls":
            items.sort(key=lambda call: call.age_millis)
    return merged


def merge_sizes(answers: Mapping[int, table_pb2.ListTableSizesResponse]) -> table_pb2.ListTableSizesResponse:
    """Returns the sizes of tables by name. Adds up those of tablets, and leaves out tables of which one is missing."""
    found = dict[str, table_pb2.TableSize]()
    for size in (size for answer in answers.values() for size in answer.sizes):
        known = found.setdefault(size.name, size)
        if known is size:
            continue
        known.disk_bytes += size.disk_bytes
        known.unopened_buckets += size.unopened_buckets
        known.measured_tablets += size.measured_tablets
        if known.HasField("rows") and size.HasField("rows"):
            known.rows += size.rows
        else:
            known.ClearField("rows")
    complete = [found[name] for name in sorted(found) if found[name].measured_tablets == found[name].tablets]
    for size in complete:
        size.ClearField("tablets")
        size.ClearField("measured_tablets")
    return table_pb2.ListTableSizesResponse(sizes=complete)


def merge_transactions(
    answers: Mapping[int, transaction_pb2.ListTransactionsResponse],
) -> transaction_pb2.ListTransactionsResponse:
    """Returns the transactions of all workers, the oldest first. Every worker lists an open one, under one token."""
    by_token: dict[str, transaction_pb2.OpenTransaction] = {}
    for answer in answers.values():
        for each in answer.transactions:
            known = by_token.setdefault(each.token, each)
            if known is not each:
                _add_transaction(known, each)
    oldest_first = sorted(by_token.values(), key=lambda each: -each.age_millis)
    return transaction_pb2.ListTransactionsResponse(transactions=oldest_first)


def _add_transaction(known: transaction_pb2.OpenTransaction, other: transaction_pb2.OpenTransaction) -> None:
    """Adds what a transaction has done at one worker to what it has done at others."""
    known.rows += other.rows
    known.bytes += other.bytes
    known.locked_keys += other.locked_keys
    known.age_millis = max(known.age_millis, other.age_millis)
    known.remaining_millis = max(known.remaining_millis, other.remaining_millis)
    known.committing = known.committing or other.committing
    known.stuck = known.stuck or other.stuck
    known.principal = known.principal or other.principal
    for field in ("tables", "waits_for"):
        both = sorted({*getattr(known, field), *getattr(other, field)})
        known.ClearField(field)
        getattr(known, field).extend(both)


def merge_given_up(
    answers: Mapping[int, transaction_pb2.GiveUpTransactionResponse],
) -> transaction_pb2.GiveUpTransactionResponse:
    """Returns what a transaction has lost at all workers that have given it up. Only the coordinator knows the rest."""
    return transaction_pb2.GiveUpTransactionResponse(
        id=next((each.id for each in answers.values() if each.id), ""),
        rows=max(each.rows for each in answers.values()),
        lost=sorted(
            (lost for each in answers.values() for lost in each.lost), key=lambda lost: (lost.table, lost.bucket)
        ),
    )


def merge_stats(answers: Mapping[int, admin_pb2.StatsResponse]) -> admin_pb2.StatsResponse:
    """Returns the statistics of the server: mostly sums."""
    merged = admin_pb2.StatsResponse(version=answers[0].version, incarnation=answers[0].incarnation)
    _add(merged, [*answers.values()])
    bases = merge_bases(merged.bases)
    merged.ClearField("bases")
    merged.bases.extend(bases)
    return merged


def merge_scans(scans: Iterable[admin_pb2.LiveScan]) -> list[admin_pb2.LiveScan]:
    """Returns live scans with one item for each scan, even if it has parts at several tablets."""
    by_id: dict[str, admin_pb2.LiveScan] = {}
    for each in scans:
        known = by_id.setdefault(each.scan_id, each)
        if known is each:
            continue
        known.buckets[:] = sorted({*known.buckets, *each.buckets})
        known.age_millis = max(known.age_millis, each.age_millis)
        known.idle_millis = min(known.idle_millis, each.idle_millis)
        known.rows_scanned += each.rows_scanned
        known.bytes_returned += each.bytes_returned
        known.may_cancel = known.may_cancel and each.may_cancel
    return list(by_id.values())


def merge_bases(bases: Iterable[admin_pb2.TableBases]) -> list[admin_pb2.TableBases]:
    """Returns the statistics of bases with one item for each table, even if several tablets have bases."""
    by_table: dict[str, admin_pb2.TableBases] = {}
    for each in bases:
        known = by_table.setdefault(each.table, each)
        if known is each:
            continue
        for field in _SUMS_OF_BASES:
            setattr(known, field, getattr(known, field) + getattr(each, field))
        known.age_millis = max(known.age_millis, each.age_millis)
        known.unused_reasons[:] = sorted({*known.unused_reasons, *each.unused_reasons})
    return list(by_table.values())


def _add(merged: Any, answers: Sequence[Any]) -> None:  # noqa: ANN401  # messages of one type
    for field in merged.DESCRIPTOR.fields:
        values = [getattr(answer, field.name) for answer in answers]
        if field.type == FieldDescriptor.TYPE_STRING and not field.is_repeated:
            continue
        if field.name == "loop_turns":
            longest = max(map(len, values))
            merged.loop_turns.extend(sum(each[at] for each in values if at < len(each)) for at in range(longest))
        elif field.is_repeated:
            for value in values:
                getattr(merged, field.name).extend(value)
        elif field.message_type is not None:
            _add(getattr(merged, field.name), values)
        else:
            join = max if field.name in _LARGEST else min if field.name in _SMALLEST else sum
            setattr(merged, field.name, join(values))


def merge_metrics(answers: Mapping[int, admin_pb2.MetricsResponse]) -> admin_pb2.MetricsResponse:
    """Returns the metrics of all workers, each with the label `worker`, in the text format of Prometheus."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    for number, answer in answers.items():
        heads, samples, is_first = list[str](), list[str](), False
        for line in answer.text.decode().splitlines():
            if line.startswith("# HELP "):
                heads, samples = families.setdefault(line.split(" ", 3)[2], ([], []))
                is_first = not heads
            if not line.startswith("#"):
                samples.append(_labelled(line, number))
            elif line != "# EOF" and is_first:
                heads.append(line)
    lines = [line for heads, samples in families.values() for line in (*heads, *samples)]
    return admin_pb2.MetricsResponse(
        text="\n".join([*lines, ""]).encode(), content_type=next(iter(answers.values())).content_type
    )


def _labelled(sample: str, number: int) -> str:
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f'{name}{{worker="{number}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{worker="{number}"}} {value}'
