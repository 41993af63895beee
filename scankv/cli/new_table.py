"""Decides which table `load --create` creates: the exported table, or a new one with the columns of the file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from scankv.formats.table_files import TableFile
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from scankv.formats.origin import Origin

NEEDS_KEY: Final = (
    "--create needs the columns of the primary key: --key a,b; or --no-key, for a table to which rows are only appended"
)


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table to create for a file.

    Attributes:
        definition: The definition of the table.
        notes: The differences from the exported table, one message each. No part of a definition is dropped silently.
        restored: Whether the table restores an exported one. Its rows are already merged and must not be merged again.
    """

    definition: TableFile
    notes: tuple[str, ...] = ()
    restored: bool = False


def plan_new_table(
    name: str,
    schema: pa.Schema,
    origin: Origin | None,
    *,
    key: Sequence[str],
    buckets: int | None,
    settings: Mapping[str, Any],
    no_key: bool = False,
) -> NewTable:
    """Decides which table to create. Options override the definition in the file, and each difference gets a note.

    Args:
        name: The table, as `database.table`.
        schema: The columns of the file.
        origin: The metadata of an exported file. None: the options define the table.
        key: The key columns from the command line; empty if none were given.
        buckets: The number of buckets from the command line, or None.
        settings: The table options from the command line, as text.
        no_key: Whether the table is to have no primary key.

    Raises:
        UsageError: No key was given for a new table, or the file lacks a column that its definition needs.
    """
    if no_key and (key or origin is not None):
        raise UsageError(
            "--no-key excludes --key, and the definition in an exported file: leave out one of them, or give "
            "--ignore-definition"
        )
    if origin is None:
        if not key and not no_key:
            raise UsageError(NEEDS_KEY)
        arguments = {"primary_key": list(key)} | ({} if buckets is None else {"buckets": buckets})
        return NewTable(TableFile(name, schema, arguments, dict(settings)))
    restored = replace(origin.table_file(schema), table=name)
    notes = [*_override(restored, key, buckets, settings), *_leave_out(restored, origin.columns())]
    _check_columns(restored)
    notes += [
        f'column "{column}": an export does not contain the inputs of an avg; each exported value counts as one input'
        for column, each in restored.arguments.get("aggregators", {}).items()
        if each.function == "avg"
    ]
    return NewTable(restored, tuple(notes), restored=True)


def _override(said: TableFile, key: Sequence[str], buckets: int | None, settings: Mapping[str, Any]) -> Iterable[str]:
    """Applies the options to the definition, and yields a note for each difference."""
    arguments, options = said.arguments, said.options
    if key and list(key) != arguments["primary_key"]:
        yield f"key {','.join(key)} instead of {','.join(arguments['primary_key'])}"
        arguments["primary_key"] = list(key)
        if "bucket_key" in arguments:
            yield f"bucket key {','.join(key)} instead of {','.join(arguments.pop('bucket_key'))}"
    if buckets is not None and buckets != arguments.get("buckets"):
        yield f"buckets {buckets} instead of {arguments.get('buckets', 'the default')}"
        arguments["buckets"] = buckets
    for name, value in settings.items():
        place = arguments if name in ("version_column", "sequence_column") else options
        before = place.get(name)
        shown = (
            str(before).lower()
            if isinstance(before, bool)
            else ",".join(before)
            if isinstance(before, list)
            else before
        )
        if value != str(shown):
            yield f"{name} {value} instead of {'the default' if shown is None else shown}"
        place[name] = value


def _text(value: str | bool | int | list[str]) -> str:
    if isinstance(value, list):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _leave_out(said: TableFile, exported: Sequence[str]) -> Iterable[str]:
    """Removes indexes and aggregators of columns that are not in the file, and yields a note for each loss."""
    present, arguments = set(said.schema.names), said.arguments
    for column in exported:
        if column not in present:
            yield f'no column "{column}": the file does not have it'
    for columns in arguments.get("indexes", ()):
        if not present.issuperset(columns):
            yield f"no index on ({', '.join(columns)}): the file does not have all of these columns"
    if "indexes" in arguments:
        arguments["indexes"] = [columns for columns in arguments["indexes"] if present.issuperset(columns)]
    for column in set(arguments.get("aggregators", ())) - present:
        del arguments["aggregators"][column]


def _check_columns(said: TableFile) -> None:
    """Raises UsageError if the file lacks a key column, or a column that decides which of two rows is newer."""
    arguments = said.arguments
    version, order = arguments.get("version_column"), arguments.get("sequence_column", ())
    grouped = [name for group in arguments.get("sequence_groups", {}).items() for names in group for name in names]
    named = [
        *arguments["primary_key"],
        *([version] if version else []),
        *([order] if isinstance(order, str) else order),
    ]
    missing = [name for name in (*named, *grouped) if name not in said.schema.names]
    if missing:
        raise UsageError(
            f'the file does not have the column "{missing[0]}", which the definition of the exported table needs: '
            "export that column as well, or give --ignore-definition with --key and --set",
            column=missing[0],
        )
