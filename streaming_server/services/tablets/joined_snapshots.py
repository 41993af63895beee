"""Joins the parts of a snapshot, one of each tablet, into the snapshot that clients know."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from scankv.v1 import snapshot_pb2
from streaming_server.engine.snapshots.part_ids import PartId

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def join_snapshots(found: Iterable[snapshot_pb2.Snapshot]) -> list[snapshot_pb2.Snapshot]:
    """Returns snapshots, with parts joined, oldest view first. Leaves out snapshots that lack parts."""
    joined, parts = list[snapshot_pb2.Snapshot](), dict[tuple[str, str], dict[int, snapshot_pb2.Snapshot]]()
    for each in found:
        part = PartId.parse(each.snapshot_id)
        if part is None:
            joined.append(each)
            continue
        others = parts.setdefault((part.snapshot_id, part.pin), {})
        others[part.tablet] = each
        if len(others) == part.tablets:
            joined.append(join_parts(others))
    return sorted(joined, key=lambda each: (each.view_micros, each.view_id, each.snapshot_id))


def join_parts(parts: Mapping[int, snapshot_pb2.Snapshot]) -> snapshot_pb2.Snapshot:
    """Returns the snapshot that has these parts, by tablet."""
    first = parts[0]
    part = PartId.parse(first.snapshot_id)
    assert part is not None
    joined = snapshot_pb2.Snapshot()
    joined.CopyFrom(first)
    joined.snapshot_id = part.snapshot_id
    joined.table_incarnation = first.table_incarnation.removesuffix("-0")
    views = "".join(parts[number].view_id for number in range(part.tablets))
    joined.view_id = hashlib.blake2b(views.encode(), digest_size=16).hexdigest()
    joined.view_micros = max(each.view_micros for each in parts.values())
    joined.remaining_millis = min(each.remaining_millis for each in parts.values())
    for each in parts.values():
        joined.log_offsets.update(each.log_offsets)
    joined.ClearField("rows")
    if all(each.HasField("rows") for each in parts.values()):
        joined.rows = sum(each.rows for each in parts.values())
    return joined
