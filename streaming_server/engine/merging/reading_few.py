"""Reads the few rows or keys of a request as Python values, from encoded rows or from Arrow data."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from scankv.model.errors import InvalidKey
from scankv.model.rows.row_values import NotExactError
from streaming_server.engine.merging.few_rows import FewRows

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.rows.single_rows import Values
    from streaming_server.storage.rows.table_codec import TableCodec

_MOST_ROWS: Final = 128
"""The most rows of Arrow data that are read as Python values. Columns are faster for more."""

_MOST_BYTES: Final = 64 * 1024
"""The most bytes of these rows, which is far less than a single row may have."""


def replaces_rows(definition: TableDefinition) -> bool:
    """Returns whether complete rows that are written to a table replace its current rows, and need not be merged.

    If the changelog records every written row, rows of one key are merged, so that none of them is dropped before.
    """
    return (
        definition.options.changelog != "input"
        and definition.options.merge_engine == "last_row"
        and not definition.merging.order_columns
        and not definition.hidden_columns(definition.schema)
    )


def group_few(rows: Iterable[tuple[bytes, Values]], codec: TableCodec, *, deletes: bool) -> list[FewRows]:
    """Groups the rows of a request, given with their encoded keys, by bucket and key, as `prepare` and `group_by_key`.

    Args:
        rows: The rows, or the values of keys to delete.
        codec: The table.
        deletes: Whether the keys are deleted.

    Returns:
        The rows of each bucket, ascending. Rows that are merged are in key order; others are in the order of arrival,
        at the place of the last row of their key.
    """
    merges = not deletes and not replaces_rows(codec.definition)
    by_bucket: dict[int, dict[bytes, list[Values]]] = {}
    for key, values in rows:
        by_key = by_bucket.setdefault(codec.keys.bucket_of(key), {})
        if merges:
            by_key.setdefault(key, []).append(values)
        else:
            by_key.pop(key, None)
            by_key[key] = [values]
    parts = []
    for bucket, by_key in sorted(by_bucket.items()):
        keys = sorted(by_key) if merges else list(by_key)
        parts.append(_few_rows(codec, bucket, keys, [by_key[key] for key in keys], deletes=deletes, merges=merges))
    return parts


def group_independent(
    rows: Iterable[tuple[int, bytes, Values]], codec: TableCodec, *, deletes: bool
) -> tuple[list[FewRows], dict[int, tuple[int, int]]]:
    """Groups independent rows, given with their numbers and encoded keys, by bucket. Their order within a key stays.

    Returns:
        The rows of each bucket, ascending; and by its number, the bucket of each row and its place among the keys of
        that bucket.
    """
    merges = not deletes and not replaces_rows(codec.definition)
    # For each bucket, the steps in which each key occurs once.
    by_bucket: dict[int, list[dict[bytes, tuple[int, Values]]]] = {}
    for number, key, values in rows:
        steps = by_bucket.setdefault(codec.keys.bucket_of(key), [{}])
        step = next((each for each in steps if key not in each), None)
        if step is None:
            steps.append(step := {})
        step[key] = (number, values)
    parts: list[FewRows] = []
    places: dict[int, tuple[int, int]] = {}
    for bucket, steps in sorted(by_bucket.items()):
        ordered = [(key, *step[key]) for step in steps for key in step]
        places |= {number: (bucket, place) for place, (_, number, _) in enumerate(ordered)}
        part = _few_rows(
            codec,
            bucket,
            [key for key, _, _ in ordered],
            [[values] for _, _, values in ordered],
            deletes=deletes,
            merges=merges,
            ends=tuple(accumulate(map(len, steps))),
        )
        parts.append(part)
    return parts, places


def read_few(rows: pa.RecordBatch, codec: TableCodec, *, deletes: bool) -> list[FewRows] | None:
    """Reads few rows, or keys to delete, from Arrow data.

    Args:
        rows: The rows, of any schema of the table. Columns that they lack are null. With `deletes`, the key columns.
        codec: The table.
        deletes: Whether the keys are deleted.

    Returns:
        The rows by bucket as `group_few`. None: they are too many, or only the path for columns can read them, or
        refuses them.
    """
    single = codec.single
    if single is None or not 0 < rows.num_rows <= _MOST_ROWS or rows.nbytes > _MOST_BYTES:
        return None
    nothing: list[Any] = [None] * rows.num_rows
    try:
        columns = {name: column.to_pylist() for name, column in zip(rows.schema.names, rows.columns, strict=True)}
        hidden = [nothing] * single.hidden if deletes else []
        values = list(zip(*(columns.get(name, nothing) for name in single.schema.names), *hidden, strict=True))
        keyed = [(single.encode_key(row, 0), row) for row in values]
        if codec.indexes and not deletes and replaces_rows(codec.definition):
            # The rows must have entries in all indexes before any of them is written.
            for _, entries in codec.single_entries():
                for key, row in keyed:
                    entries.entry(key, row)
    except (InvalidKey, NotExactError, ValueError, OverflowError):
        return None
    return group_few(keyed, codec, deletes=deletes)


def _few_rows(
    codec: TableCodec,
    bucket: int,
    keys: list[bytes],
    rows: list[list[Values]],
    *,
    deletes: bool,
    merges: bool,
    ends: tuple[int, ...] = (),
) -> FewRows:
    assert codec.single is not None
    return FewRows(
        bucket=bucket,
        codec=codec.rows,
        single=codec.single,
        deletes=deletes,
        merges=merges,
        keys=keys,
        rows=rows,
        ends=ends,
    )
