"""Changes of a table's columns: what they may be, and the columns after them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from scankv.model.errors import InvalidRequest, SchemaMismatch
from scankv.model.tables.columns import Schema, check_columns, columns_from
from scankv.model.types.casts import cast_exactly
from scankv.model.types.types import check_field_name, check_unique, format_type, storable_type
from scankv.model.types.widening import is_wider, reused_field, widen_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scankv.model.tables.columns import ColumnDefinition

MAX_COMMENT_LENGTH: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChanges:
    """Changes of a table's columns, which are made together. Immutable.

    Columns are dropped, renamed, widened and added, in this order, so `drop`, `rename` and `types` have the names
    before. The others have the names after.

    Attributes:
        drop: The columns to drop.
        rename: The new names of columns, by name.
        types: The new types of columns, by name.
        add: The columns to add at the end. They are nullable.
        defaults: A batch of one row with the new defaults of columns. Rows that exist get them in columns that are
            added. A null removes a default.
        comments: The new comments of columns, by name. An empty one removes it.
        order: All columns in their new order. Empty: the order stays.
    """

    drop: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    add: pa.Schema | None = None
    defaults: pa.RecordBatch | None = None
    comments: Mapping[str, str] = field(default_factory=dict)
    order: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is any change."""
        return (
            any((self.drop, self.rename, self.types, self.comments, self.order))
            or self.add is not None
            or self.defaults is not None
        )

    @property
    def only_adds(self) -> bool:
        """Whether columns without defaults are added, and nothing else is changed."""
        return self.add is not None and self == ColumnChanges(add=self.add)


NO_COLUMN_CHANGES: Final = ColumnChanges()
"""Columns as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnUses:
    """What a table uses its columns for. Such columns cannot be changed in every way.

    Attributes:
        key: The columns of the primary key.
        fixed_type: Columns whose types cannot change, with the human-readable reason.
        needed: Columns that cannot be dropped, with the human-readable reason.
        without_default: Columns that cannot have a default, with the human-readable reason.
        nested: All types that nested columns have had, the present one last.
        merges_nulls: Whether a null in a written row leaves the column as it is, so that rows are never incomplete.
    """

    key: tuple[str, ...]
    fixed_type: Mapping[str, str]
    needed: Mapping[str, str]
    without_default: Mapping[str, str]
    nested: Mapping[str, tuple[pa.DataType, ...]]
    merges_nulls: bool


def evolve(schema: Schema, changes: ColumnChanges, uses: ColumnUses, last_column_id: int) -> Schema:
    """Returns the next version of a schema.

    Args:
        schema: The current version.
        changes: At least one change.
        uses: What the table uses its columns for, by their names before the changes.
        last_column_id: The id of the column added last. Ids are never reused.

    Raises:
        SchemaMismatch: A column does not exist, is named twice, or has a name, a type or a default that is not allowed;
            or the table needs it as it is. The message says why.
        InvalidRequest: The order does not name every column.
    """
    columns = _dropped(schema, changes, uses)
    columns = _renamed(schema, columns, changes, uses)
    columns = _widened(schema, columns, changes, uses)
    added = () if changes.add is None else _added(changes.add, last_column_id)
    columns = [*columns, *added]
    check_columns(columns)
    old_names = {column.id: column.name for column in schema.columns}
    columns = _with_defaults(columns, changes.defaults, uses, old_names)
    columns = _with_comments(columns, changes.comments)
    return Schema(schema.id + 1, tuple(_ordered(columns, changes.order)))


def _dropped(schema: Schema, changes: ColumnChanges, uses: ColumnUses) -> list[ColumnDefinition]:
    check_unique(changes.drop, "is dropped twice")
    for name in changes.drop:
        schema.column(name)
        if name in uses.needed:
            raise SchemaMismatch(f'column "{name}" cannot be dropped: {uses.needed[name]}', column=name)
        if name in changes.rename or name in changes.types:
            raise SchemaMismatch(f'column "{name}" is dropped and changed: do one of both', column=name)
    return [column for column in schema.columns if column.name not in changes.drop]


def _renamed(
    schema: Schema, columns: list[ColumnDefinition], changes: ColumnChanges, uses: ColumnUses
) -> list[ColumnDefinition]:
    for old, new in changes.rename.items():
        schema.column(old)
        check_field_name(new)
        if old in uses.key:
            raise SchemaMismatch(
                f'column "{old}" cannot be renamed: it is in the primary key, by which clients name rows', column=old
            )
    return [replace(column, name=changes.rename.get(column.name, column.name)) for column in columns]


def _widened(
    schema: Schema, columns: list[ColumnDefinition], changes: ColumnChanges, uses: ColumnUses
) -> list[ColumnDefinition]:
    types: dict[int, pa.DataType] = {}
    for name, asked in changes.types.items():
        column, type_ = schema.column(name), storable_type(asked, name)
        if name in uses.fixed_type:
            raise SchemaMismatch(f'column "{name}" cannot change its type: {uses.fixed_type[name]}', column=name)
        if type_ != column.type and not is_wider(column.type, type_):
            raise SchemaMismatch(
                f'column "{name}" cannot change from {format_type(column.type)} to {format_type(type_)}: only to a '
                "wider integer or float, to a decimal of the same scale and greater precision, from date32 to a "
                "timestamp without time zone in s, ms or us, or to a struct with more or fewer nullable fields; add "
                "another column instead",
                column=name,
            )
        reused = reused_field(uses.nested.get(name, (column.type,)), type_)
        if reused is not None:
            raise SchemaMismatch(
                f'column "{name}" cannot have the field "{reused}" again, which it has had before: the field would '
                "have the old values; choose another name",
                column=name,
            )
        types[column.id] = type_
    return [_with_type(column, types.get(column.id, column.type)) for column in columns]


def _with_type(column: ColumnDefinition, type_: pa.DataType) -> ColumnDefinition:
    if type_ == column.type:
        return column
    initial, default = column.initial_default, column.write_default
    return replace(
        column,
        type=type_,
        initial_default=None if initial is None else _widened_default(initial, type_),
        write_default=None if default is None else _widened_default(default, type_),
    )


def _widened_default(value: pa.Scalar, type_: pa.DataType) -> pa.Scalar:
    return widen_values(pa.array([value], value.type), type_)[0]


def _added(added: pa.Schema, last_column_id: int) -> tuple[ColumnDefinition, ...]:
    if not len(added):
        raise SchemaMismatch("no columns to add were given: give at least one")
    for each in added:
        if not each.nullable:
            raise SchemaMismatch(
                f'column "{each.name}" is NOT NULL, but it can be left out in writes of some columns, which would have '
                "a null there; add it as nullable, with a default if you like",
                column=each.name,
            )
    # New columns get their initial defaults with the others.
    return columns_from(added, last_column_id + 1)


def _with_defaults(
    columns: list[ColumnDefinition], defaults: pa.RecordBatch | None, uses: ColumnUses, old_names: Mapping[int, str]
) -> list[ColumnDefinition]:
    if defaults is None:
        return columns
    check_unique(defaults.schema.names, "has two defaults")
    if defaults.num_rows != 1:
        raise InvalidRequest(f"the defaults of columns are one row, not {defaults.num_rows:,}")
    names, given = {column.name for column in columns}, set(defaults.schema.names)
    for name in defaults.schema.names:
        if name not in names:
            raise SchemaMismatch(f'there is no column "{name}" to have a default', column=name)
    result = []
    for column in columns:
        if column.name not in given:
            result.append(column)
            continue
        # A new column may have the old name of another one.
        reason = uses.without_default.get(old_names[column.id]) if column.id in old_names else None
        if reason is not None:
            raise SchemaMismatch(f'column "{column.name}" cannot have a default: {reason}', column=column.name)
        value = _default(defaults.column(column.name), column)
        is_new = column.id not in old_names
        if uses.merges_nulls and not is_new:
            raise SchemaMismatch(
                f'column "{column.name}" cannot have a default now: with this merge engine, a null in a written row '
                "leaves the column as it is; only a column that is added can have one, for the rows that exist",
                column=column.name,
            )
        result.append(
            replace(
                column,
                initial_default=value if is_new else column.initial_default,
                write_default=None if uses.merges_nulls else value,
            )
        )
    return result


def _default(value: pa.Array, column: ColumnDefinition) -> pa.Scalar | None:
    try:
        scalar = cast_exactly(value, column.type)[0]
    except (TypeError, ValueError) as error:
        raise SchemaMismatch(f'column "{column.name}" cannot have this default: {error}', column=column.name) from error
    return scalar if scalar.is_valid else None


def _with_comments(columns: list[ColumnDefinition], comments: Mapping[str, str]) -> list[ColumnDefinition]:
    names = [column.name for column in columns]
    for name, comment in comments.items():
        if name not in names:
            raise SchemaMismatch(f'there is no column "{name}" to have a comment', column=name)
        if len(comment) > MAX_COMMENT_LENGTH:
            raise SchemaMismatch(
                f'the comment of column "{name}" has {len(comment):,} characters; the limit is {MAX_COMMENT_LENGTH:,}',
                column=name,
            )
    return [replace(column, comment=comments.get(column.name, column.comment)) for column in columns]


def _ordered(columns: list[ColumnDefinition], order: tuple[str, ...]) -> list[ColumnDefinition]:
    if not order:
        return columns
    check_unique(order, "is in the order twice")
    by_name = {column.name: column for column in columns}
    for name in order:
        if name not in by_name:
            raise SchemaMismatch(f'there is no column "{name}" in the order', column=name)
    missing = [name for name in by_name if name not in order]
    if missing:
        raise InvalidRequest(f'the order lacks column "{missing[0]}": name every column once', column=missing[0])
    return [by_name[name] for name in order]
