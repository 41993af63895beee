"""Planning a read, where Spark plans: which columns, which snapshot, which part of it each task reads."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from aio_client import ScanKvError, SchemaMismatch, SnapshotLost, sync
from spark_bridge.leases import Lease
from spark_bridge.splitting import split
from spark_bridge.types import spark_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import StructType

    from aio_client import ClientConfig, ScanSpec
    from spark_bridge.options import ReadOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPart:
    """What one task reads: keys of one snapshot, or changes. Picklable; has keys of the table, but no secret.

    Attributes:
        config: How the server is reached.
        spec: The scan.
        number: Which of the parts it is.
        count: How many there are.
        lease: What keeps the snapshot; None where somebody else does.
        followed: The incarnation of the table that a streaming query follows: then rows may have to come as changes,
            and changes as rows. None: it is of a read as of one instant.
    """

    config: ClientConfig
    # Its key range is made of values, which do not belong in plans and logs.
    spec: ScanSpec = field(repr=False)
    number: int
    count: int
    lease: Lease | None
    followed: str | None = None


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The parts of a read, and the columns that they give."""

    parts: list[ScanPart]
    schema: StructType


def described(options: ReadOptions) -> StructType:
    """The columns that a read has, once the server has checked what is asked for. Takes no snapshot.

    Raises:
        ScanKvError: Something is wrong with the options; or the server cannot be reached.
    """
    with sync.connect(options.url) as client:
        table = client.table(options.table)
        scan = options.scan_of(table)
        if options.snapshot is not None:
            snapshot = _named(client, options.table, options.snapshot)
            scan.at(snapshot).explain()
            return chosen_columns(snapshot.schema, options.columns)
        scan.explain()
        return chosen_columns(table.schema, options.columns)


def planned(options: ReadOptions, schema: StructType | None = None) -> ReadPlan:
    """Pins the table, or takes the snapshot that was named, and cuts it into parts of about equally many rows.

    Args:
        options: What is asked for.
        schema: What Spark expects, which may name fewer columns, in another order. None: what the table has.

    Raises:
        SchemaMismatch: The table does not have such columns (any more).
        ScanKvError: Something is wrong with the options; or the server cannot be reached.
    """
    with sync.connect(options.url) as client:
        table = client.table(options.table)
        options.scan_of(table).explain()
        own = options.snapshot is None
        snapshot = table.snapshot(options.snapshot_ttl) if own else _named(client, options.table, options.snapshot)
        try:
            wanted = chosen_columns(snapshot.schema, options.columns)
            if schema is not None:
                check_columns(schema, wanted)
                wanted = schema
            # By name: a column that is added later is not part of it.
            specs = split(table, snapshot, replace(options, columns=tuple(wanted.names)))
        except BaseException:
            if own:
                # What went wrong is told; a lease that stays behind expires.
                with suppress(ScanKvError):
                    snapshot.release()
            raise
        lease = Lease(snapshot.id, options.snapshot_ttl) if own else None
        config = client.config
    parts = [
        ScanPart(config=config, spec=spec, number=number, count=len(specs), lease=lease)
        for number, spec in enumerate(specs)
    ]
    return ReadPlan(parts, wanted)


def _named(client: sync.Client, table: str, snapshot_id: str | None) -> sync.Snapshot:
    for snapshot in client.snapshots(table):
        if snapshot.id == snapshot_id:
            return snapshot
    raise SnapshotLost(
        f"option snapshot: table {table} has no snapshot {snapshot_id!r:.80}: it was released, has expired, is of "
        "another table, or never was",
        table=table,
        option="snapshot",
    )


def chosen_columns(schema: pa.Schema, columns: Sequence[str] | None) -> StructType:
    """The chosen columns in Spark's types: those that nobody asks for may be of any type. Raises SchemaMismatch."""
    if columns is None:
        return spark_schema(schema)
    for name in columns:
        if name not in schema.names:
            raise SchemaMismatch(f'option columns: there is no column "{name}"', column=name)
    return spark_schema(pa.schema([schema.field(name) for name in columns]))


def check_columns(asked: StructType, there: StructType) -> None:
    """Refuses, with SchemaMismatch, a schema that is no choice of the columns there are, with their types.

    NOT NULL is only what is so in the table.
    """
    by_name = {column.name: column for column in there}
    if not asked.names:
        raise SchemaMismatch("the schema has no column")
    for column in asked:
        found = by_name.get(column.name)
        if found is None:
            raise SchemaMismatch(
                f'the schema has a column "{column.name}", and the table, or option columns, has not: it has '
                f"{', '.join(there.names)}; load() again if the table was altered",
                column=column.name,
            )
        if column.dataType != found.dataType:
            raise SchemaMismatch(
                f'column "{column.name}" is {found.dataType.simpleString()} in the table, and '
                f"{column.dataType.simpleString()} in the schema; leave the schema out, and cast what was read",
                column=column.name,
            )
        if found.nullable and not column.nullable:
            raise SchemaMismatch(
                f'column "{column.name}" is NOT NULL in the schema, and in the table it may be null', column=column.name
            )
