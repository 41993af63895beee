"""How rows with the same key are merged: the parameters of merge engines that are not table options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from scankv.model.errors import InvalidOption, InvalidRequest, SchemaMismatch
from scankv.model.tables.merge_functions import ColumnAggregate, aggregate_of, check_aggregate
from scankv.model.types.types import check_unique, format_type, is_key_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scankv.model.tables.columns import ColumnDefinition, Schema
    from scankv.model.tables.options import TableOptions

PARTIAL_ENGINES: Final = ("last_row", "aggregate", "partial_update")
"""The merge engines that accept writes of some columns."""


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """Columns that change together, and only by rows that are not older.

    Attributes:
        sequence: The columns that decide how new a row is, the most significant first. Null is older than any value. A
            row that is null in all of these columns leaves the group unchanged.
        columns: The other columns of the group, which change together with the sequence columns.
    """

    sequence: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def members(self) -> tuple[str, ...]:
        """The sequence columns and the columns of the group."""
        return (*self.sequence, *self.columns)


@dataclass(frozen=True)
class MergeSpec:
    """The parameters of a merge engine. Immutable; empty for engines without parameters.

    Attributes:
        version_column: For `versioned`: the column that decides which row wins.
        sequence_columns: For `last_row`: rows that are older in these columns lose. Empty: the row written last wins.
        sequence_groups: For `partial_update`.
        aggregates: For `aggregate`, and for columns in sequence groups.
    """

    version_column: str | None = None
    sequence_columns: tuple[str, ...] = ()
    sequence_groups: tuple[SequenceGroup, ...] = ()
    aggregates: tuple[ColumnAggregate, ...] = ()

    @cached_property
    def by_column(self) -> dict[str, ColumnAggregate]:
        """The aggregates by their columns."""
        return {each.column: each for each in self.aggregates}

    @property
    def order_columns(self) -> tuple[str, ...]:
        """The columns that decide which of two complete rows is newer. Empty: the row written last is newer."""
        return (self.version_column,) if self.version_column is not None else self.sequence_columns

    def with_aggregates(self, added: Sequence[ColumnAggregate]) -> MergeSpec:
        """Returns a copy with the aggregates of added columns."""
        aggregates = (*self.aggregates, *added)
        return MergeSpec(self.version_column, self.sequence_columns, self.sequence_groups, aggregates)

    def renamed(self, names: Mapping[str, str]) -> MergeSpec:
        """Returns a copy for a table with other column names: new names by old name."""

        def new(columns: Sequence[str]) -> tuple[str, ...]:
            return tuple(names.get(name, name) for name in columns)

        version = self.version_column
        return MergeSpec(
            None if version is None else names.get(version, version),
            new(self.sequence_columns),
            tuple(SequenceGroup(new(group.sequence), new(group.columns)) for group in self.sequence_groups),
            tuple(replace(each, column=names.get(each.column, each.column)) for each in self.aggregates),
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the parameters as JSON values, without empty ones."""
        values: dict[str, Any] = {
            "version_column": self.version_column,
            "sequence_columns": list(self.sequence_columns),
            "sequence_groups": [
                {"sequence": list(group.sequence), "columns": list(group.columns)} for group in self.sequence_groups
            ],
            "aggregates": [
                {"column": each.column, "function": each.function, "parameters": dict(each.parameters)}
                for each in self.aggregates
            ],
        }
        return {name: value for name, value in values.items() if value}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> MergeSpec:
        """Reads the result of `to_json`."""
        return cls(
            version_column=values.get("version_column"),
            sequence_columns=tuple(values.get("sequence_columns", ())),
            sequence_groups=tuple(
                SequenceGroup(tuple(group["sequence"]), tuple(group["columns"]))
                for group in values.get("sequence_groups", ())
            ),
            aggregates=tuple(
                aggregate_of(each["column"], each["function"], each["parameters"])
                for each in values.get("aggregates", ())
            ),
        )


NO_MERGING: Final = MergeSpec()
"""The parameters of engines without parameters."""


def check_merging(spec: MergeSpec, options: TableOptions, schema: Schema, primary_key: Sequence[str]) -> None:
    """Checks the parameters of an engine against the columns of its table.

    Raises:
        InvalidOption: The engine needs a parameter that is missing, or does not have a parameter that is given.
        InvalidRequest: An aggregator or its parameter does not exist, or a column is not allowed in its role.
        SchemaMismatch: A column does not exist, or its type is not allowed in its role.
    """
    engine = options.merge_engine
    _check_uses(spec, engine)
    if options.delete_behavior == "retract" and not spec.sequence_groups:
        raise InvalidOption(
            'delete_behavior "retract" retracts the columns of sequence groups: give sequence_groups',
            option="delete_behavior",
        )
    if options.delete_behavior == "allow" and spec.sequence_groups:
        raise InvalidOption(
            'delete_behavior must be "disable" or "ignore" or "retract" with sequence_groups, not "allow", which would '
            "remove rows whatever their sequence",
            option="delete_behavior",
        )
    check_unique(spec.order_columns, "is named twice in sequence_column", InvalidRequest)
    for name in spec.order_columns:
        _check_orders(schema.column(name), primary_key)
    _check_groups(spec.sequence_groups, schema, primary_key)
    _check_aggregates(spec, engine, schema, primary_key)
    if options.delete_behavior == "retract":
        for name in (name for group in spec.sequence_groups for name in group.columns):
            if not schema.column(name).nullable:
                raise SchemaMismatch(f'column "{name}" is NOT NULL, but retracting a row makes it null', column=name)


def _check_uses(spec: MergeSpec, engine: str) -> None:
    given = {
        "version_column": (spec.version_column is not None, ("versioned",)),
        "sequence_column": (bool(spec.sequence_columns), ("last_row",)),
        "sequence_groups": (bool(spec.sequence_groups), ("partial_update",)),
        "aggregators": (bool(spec.aggregates), ("aggregate", "partial_update")),
    }
    for name, (is_given, engines) in given.items():
        if is_given and engine not in engines:
            wanted = " or ".join(f'"{each}"' for each in engines)
            raise InvalidOption(f'{name} is only for merge_engine {wanted}, not for "{engine}"', option=name)
    if engine == "versioned" and spec.version_column is None:
        raise InvalidOption('merge_engine "versioned" needs a version_column', option="version_column")


def _check_orders(column: ColumnDefinition, primary_key: Sequence[str]) -> None:
    _check_beside_key(column.name, primary_key, "and cannot order rows with the same key")
    if not is_key_type(column.type):
        raise SchemaMismatch(
            f'column "{column.name}" is {format_type(column.type)}, which has no order and cannot decide which row is '
            "newer",
            column=column.name,
        )


def _check_beside_key(name: str, primary_key: Sequence[str], consequence: str) -> None:
    if name in primary_key:
        raise InvalidRequest(f'column "{name}" is in the primary key {consequence}', column=name)


def _check_groups(groups: Sequence[SequenceGroup], schema: Schema, primary_key: Sequence[str]) -> None:
    for group in groups:
        if not group.sequence or not group.columns:
            raise InvalidRequest("a sequence group must have at least one sequence column and one other column")
        for name in group.sequence:
            _check_orders(schema.column(name), primary_key)
        for name in group.columns:
            _check_beside_key(schema.column(name).name, primary_key, "and cannot be in a sequence group")
    check_unique([name for group in groups for name in group.members], "is in sequence groups twice", InvalidRequest)


def _check_aggregates(spec: MergeSpec, engine: str, schema: Schema, primary_key: Sequence[str]) -> None:
    check_unique([each.column for each in spec.aggregates], "has two aggregators", InvalidRequest)
    grouped = {name for group in spec.sequence_groups for name in group.columns}
    for each in spec.aggregates:
        column = schema.column(each.column)
        _check_beside_key(each.column, primary_key, "and cannot be aggregated")
        if engine == "partial_update" and each.column not in grouped:
            raise InvalidRequest(
                f'column "{each.column}" is in no sequence group; with merge_engine "partial_update" only columns of '
                "sequence groups can have an aggregate",
                column=each.column,
            )
        check_aggregate(each, column)


def check_retraction(engine: str, delete_behavior: str, table: str) -> None:
    """Raises InvalidRequest if the merge engine does not support retraction."""
    if engine != "aggregate" and delete_behavior != "retract":
        raise InvalidRequest(
            f'table {table} has merge_engine "{engine}", which cannot retract rows: "aggregate" can, and '
            '"partial_update" with delete_behavior "retract"',
            table=table,
        )


def partial_schema(
    schema: pa.Schema, primary_key: Sequence[str], engine: str, spec: MergeSpec, columns: Sequence[str]
) -> pa.Schema:
    """Returns the columns of a write of only some columns, in table order.

    Args:
        schema: All columns of the table.
        primary_key: The key columns.
        engine: The table's merge engine.
        spec: The parameters of the merge engine.
        columns: The columns written: all key columns and any others, each once.

    Raises:
        InvalidRequest: The merge engine takes only complete rows.
        SchemaMismatch: A column does not exist or is named twice, a key or sequence column is missing, or a column
            outside the key is NOT NULL.
    """
    if engine not in PARTIAL_ENGINES:
        raise InvalidRequest(f'merge_engine "{engine}" takes only complete rows: write all columns')
    check_unique(columns, "is named twice")
    known = set(schema.names)
    for name in columns:
        if name not in known:
            raise SchemaMismatch(f'there is no column "{name}"', column=name)
    for name in primary_key:
        if name not in columns:
            raise SchemaMismatch(
                f'key column "{name}" is not among the columns written: name all key columns', column=name
            )
    for name in spec.sequence_columns:
        if name not in columns:
            raise SchemaMismatch(
                f'column "{name}" decides which row is newer: add it to the columns written', column=name
            )
    for field in schema:
        if field.name not in primary_key and not field.nullable:
            raise SchemaMismatch(
                f'column "{field.name}" is NOT NULL, so the table takes only complete rows: a row written with some '
                "columns would have a null there",
                column=field.name,
            )
    return pa.schema([field for field in schema if field.name in columns])
