"""Plans a read, in the process where Spark plans: which columns it has, and which part of the table each task reads."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from aio_client import ScanKvError, SchemaMismatch, SnapshotLost, sync
from spark_bridge.parts import SnapshotPart, TablePart
from spark_bridge.spans import work_span
from spark_bridge.splitting import split
from spark_bridge.types import spark_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import StructType

    from spark_bridge.options import ReadOptions
    from spark_bridge.parts import Part

_PLANNING_SECONDS: Final = 60.0
"""How long the snapshot lives by which the table is divided. A query that runs before the next write shares it."""


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The parts of a read, and the columns of their rows."""

    parts: Sequence[Part]
    schema: StructType


def describe_read(options: ReadOptions) -> StructType:
    """Has the server check a read, and returns the read's columns. Pins no snapshot.

    Raises:
        ScanKvError: An option is wrong, or the server cannot be reached.
    """
    with work_span("describe", options.table, options.traceparent), options.open_client() as client:
        table = client.table(options.table)
        scan = options.build_scan(table)
        if options.snapshot is not None:
            snapshot = _find_snapshot(client, options.table, options.snapshot)
            scan.as_of(snapshot).explain()
            return select_columns(snapshot.schema, options.columns)
        scan.explain()
        return select_columns(table.schema, options.columns)


def plan_read(options: ReadOptions, schema: StructType | None = None) -> PartitionPlan:
    """Divides the table, or the snapshot of option `snapshot`, into parts of about equally many rows.

    The plan says how the table is divided, but not which instant the tasks read: Spark keeps the plan for all actions
    of the DataFrame that `load()` returned, however much later they run. See `spark_bridge.executions`.

    Args:
        options: The options of the read.
        schema: The columns that Spark expects; they may be fewer and in another order than the table's. None: the
            columns that the options select.

    Raises:
        SchemaMismatch: The table does not have the columns of `schema`, or no longer has them.
        ScanKvError: An option is wrong, or the server cannot be reached.
    """
    with work_span("plan", options.table, options.traceparent) as traceparent, options.open_client() as client:
        table = client.table(options.table)
        options.build_scan(table).explain()
        own = options.snapshot is None
        snapshot = table.snapshot(_PLANNING_SECONDS) if own else _find_snapshot(client, options.table, options.snapshot)
        try:
            wanted = select_columns(snapshot.schema, options.columns)
            if schema is not None:
                check_column_choice(schema, wanted)
                wanted = schema
            # Naming the columns keeps a column that is added later out of the scans.
            specs = split(table, snapshot, replace(options, columns=tuple(wanted.names)))
        except BaseException:
            if own:
                # The first error is the one to report. If the release fails too, the lease expires.
                with suppress(ScanKvError):
                    snapshot.release()
            raise
        config, incarnation, plan = client.config, table.incarnation, uuid.uuid4().hex
    if not own:
        return PartitionPlan(
            [SnapshotPart(config=config, spec=spec, traceparent=traceparent) for spec in specs], wanted
        )
    parts = [
        TablePart(
            config=config,
            spec=replace(spec, snapshot_id=None),
            traceparent=traceparent,
            incarnation=incarnation,
            plan=plan,
            snapshot_ttl=options.snapshot_ttl,
        )
        for spec in specs
    ]
    return PartitionPlan(parts, wanted)


def _find_snapshot(client: sync.Client, table: str, snapshot_id: str | None) -> sync.Snapshot:
    for snapshot in client.snapshots(table):
        if snapshot.id == snapshot_id:
            return snapshot
    raise SnapshotLost(
        f"option snapshot must be the id of a snapshot of table {table}, not {snapshot_id!r:.80}: such a snapshot "
        "never existed, was released, has expired, or belongs to another table",
        table=table,
        option="snapshot",
    )


def select_columns(schema: pa.Schema, columns: Sequence[str] | None) -> StructType:
    """Returns the selected columns in Spark's types. Columns that are not selected may have any type.

    Raises:
        SchemaMismatch: A column does not exist or has no Spark type.
    """
    if columns is None:
        return spark_schema(schema)
    for name in columns:
        if name not in schema.names:
            raise SchemaMismatch(
                f'option columns names column "{name}", which does not exist: the table has {", ".join(schema.names)}',
                column=name,
            )
    return spark_schema(pa.schema([schema.field(name) for name in columns]))


def check_column_choice(asked: StructType, there: StructType) -> None:
    """Raises SchemaMismatch unless `asked` is a selection of the columns in `there`, with the same types.

    A column of `asked` may be NOT NULL only if the table's column is.
    """
    by_name = {column.name: column for column in there}
    if not asked.names:
        raise SchemaMismatch("the schema has no column: name at least one, or leave the schema out")
    for column in asked:
        found = by_name.get(column.name)
        if found is None:
            raise SchemaMismatch(
                f'the schema has a column "{column.name}" that is not among the columns of the table or of option '
                f"columns ({', '.join(there.names)}): load() again if the table was altered",
                column=column.name,
            )
        if column.dataType != found.dataType:
            raise SchemaMismatch(
                f'column "{column.name}" must have type {found.dataType.simpleString()}, as in the table, not '
                f"{column.dataType.simpleString()}: leave the schema out, and cast the column after reading",
                column=column.name,
            )
        if found.nullable and not column.nullable:
            raise SchemaMismatch(
                f'column "{column.name}" must be nullable in the schema, since it is nullable in the table',
                column=column.name,
            )
