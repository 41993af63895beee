"""Planning a read, where Spark plans: which columns, and which part of the table each task reads."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from aio_client import ScanKvError, SchemaMismatch, SnapshotLost, sync
from spark_bridge.parts import SnapshotPart, TablePart
from spark_bridge.splitting import split
from spark_bridge.types import spark_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import StructType

    from spark_bridge.options import ReadOptions
    from spark_bridge.parts import Part

_PLANNING_SECONDS: Final = 60.0
"""How long the snapshot lives that a plan is cut by. Where nothing is written before the query runs, that shares it."""


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The parts of a read, and the columns that they give."""

    parts: Sequence[Part]
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


def planned(options: ReadOptions, schema: StructType | None = None) -> PartitionPlan:
    """Cuts the table, or the snapshot that was named, into parts of about equally many rows.

    The plan says how the table is cut, not of which instant it is: Spark keeps it for all actions of what `load()` has
    returned, however much later. See `spark_bridge.executions`.

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
        snapshot = table.snapshot(_PLANNING_SECONDS) if own else _named(client, options.table, options.snapshot)
        try:
            wanted = chosen_columns(snapshot.schema, options.columns)
            if schema is not None:
                check_column_choice(schema, wanted)
                wanted = schema
            # By name: a column that is added later is not part of it.
            specs = split(table, snapshot, replace(options, columns=tuple(wanted.names)))
        except BaseException:
            if own:
                # What went wrong is told; a lease that stays behind expires.
                with suppress(ScanKvError):
                    snapshot.release()
            raise
        config, incarnation, plan = client.config, table.incarnation, uuid.uuid4().hex
    if not own:
        return PartitionPlan([SnapshotPart(config=config, spec=spec) for spec in specs], wanted)
    parts = [
        TablePart(
            config=config,
            spec=replace(spec, snapshot_id=None),
            incarnation=incarnation,
            plan=plan,
            snapshot_ttl=options.snapshot_ttl,
        )
        for spec in specs
    ]
    return PartitionPlan(parts, wanted)


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


def check_column_choice(asked: StructType, there: StructType) -> None:
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
