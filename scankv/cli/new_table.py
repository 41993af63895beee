"""Which table `load --create` makes: the exported one with everything it had, or one of the file's columns alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from scankv.formats.table_files import TableFile
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from scankv.formats.origin import Origin

NEEDS_KEY: Final = "--create needs the columns of the primary key: --key a,b"


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table that is to be created for a file.

    Attributes:
        definition: The table.
        notes: In what it differs from the table that was exported. Nothing of a definition is dropped without one.
        restored: Whether the file says how its rows were merged, so that they must not be merged once more.
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
) -> NewTable:
    """Decides what is created. Options that are given replace what the file says, and are noted.

    Args:
        name: `database.table`.
        schema: The columns of the file.
        origin: What an exported file says of its table. None: the options say it all.
        key: The key columns; empty where they were not given.
        buckets: The number of buckets, where it was given.
        settings: Other options of the table that were given, as text.

    Raises:
        UsageError: There is no key, or the file has not the columns that its definition goes by.
    """
    if origin is None:
        if not key:
            raise UsageError(NEEDS_KEY)
        arguments = {"primary_key": list(key)} | ({} if buckets is None else {"buckets": buckets})
        return NewTable(TableFile(name, schema, arguments, dict(settings)))
    restored = replace(origin.table_file(schema), table=name)
    notes = [*_override(restored, key, buckets, settings), *_leave_out(restored, origin.columns())]
    _check_columns(restored)
    notes += [
        f'column "{column}": the inputs behind an avg are not exported; it goes on from each value as from one input'
        for column, each in restored.arguments.get("aggregates", {}).items()
        if each.function == "avg"
    ]
    return NewTable(restored, tuple(notes), restored=True)


def _override(said: TableFile, key: Sequence[str], buckets: int | None, settings: Mapping[str, Any]) -> Iterable[str]:
    """Changes the definition to what was given, and tells what differs."""
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
    """Removes what is of columns that are not in the file, and reports what, and the columns themselves."""
    present, arguments = set(said.schema.names), said.arguments
    for column in exported:
        if column not in present:
            yield f'no column "{column}": the file does not have it'
    for columns in arguments.get("indexes", ()):
        if not present.issuperset(columns):
            yield f"no index on ({', '.join(columns)}): the file has not all of these columns"
    if "indexes" in arguments:
        arguments["indexes"] = [columns for columns in arguments["indexes"] if present.issuperset(columns)]
    for column in set(arguments.get("aggregates", ())) - present:
        del arguments["aggregates"][column]


def _check_columns(said: TableFile) -> None:
    """Refuses a file without the columns that decide which rows there are and which of two rows wins."""
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
            f'the file has not the column "{missing[0]}", which the definition of the exported table goes by: export '
            "that column as well, or give --ignore-definition with --key and --set",
            column=missing[0],
        )
