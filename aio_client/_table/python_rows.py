"""Single rows and keys of one shape of a table as Python values, without Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from aio_client._input.keys import is_one_key
from scankv.model.rows.key_values import KeyValues, has_key_values
from scankv.model.rows.row_values import DamagedRowError, NotExactError, RowValues, exact_class, has_row_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aio_client._table.shape import TableShape


MAX_FEW_ROWS: Final = 100
"""The most rows or keys of a call that are encoded one by one. Arrow is faster for more."""

_LONGEST_ROW: Final = 4096
"""The longest row that is encoded by itself, in bytes. For longer ones Arrow's fixed costs matter less."""


class PythonRows:
    """Encodes and decodes single rows and keys of one shape of a table, where Arrow is not needed. Immutable.

    Attributes:
        is_exact: Whether all columns have types whose values are encoded one by one.
        can_delete: Whether the server deletes rows by encoded keys.
    """

    def __init__(self, shape: TableShape) -> None:
        """Prepares the functions, which takes a millisecond."""
        types = shape.schema.types
        self.shape: Final = shape
        self._names = shape.schema.names
        self._key_names = shape.key_schema.names
        self._keys = KeyValues(shape.key_schema.types)
        self._rows = RowValues(shape.description.schema_id, types) if has_row_values(types) else None
        self._columns = frozenset(self._names)
        self._required = [place for place, field in enumerate(shape.schema) if not field.nullable]
        self._defaults = _python_defaults(shape)
        self._row_type = pa.struct(list(shape.schema))
        self.is_exact: Final = has_key_values(shape.key_schema.types) and None not in map(exact_class, types)
        # As the server decides it for `encoded_keys`.
        deletes = shape.description.options.get("delete_behavior", "default")
        self.can_delete: Final = self.is_exact and (
            deletes == "allow" or (deletes == "default" and shape.merge_engine == "last_row")
        )

    def encode_key(self, key: object) -> bytes | None:
        """Encodes one key, as `get` takes it. None: it takes the path through Arrow, which may refuse it."""
        if self._rows is None:
            return None
        if isinstance(key, Mapping):
            if len(key) != len(self._key_names):
                return None
            values = tuple(key.get(name) for name in self._key_names)
        else:
            values = key if isinstance(key, tuple) else (key,)
        if len(values) != len(self._key_names):
            return None
        try:
            return self._keys.encode(values)
        except NotExactError:
            return None

    def encode_rows(self, rows: object) -> list[bytes] | None:
        """Encodes few rows, as `upsert` takes them. None: they take the path through Arrow, which may refuse them."""
        if not self.is_exact or self._defaults is None or type(rows) is not list or not 0 < len(rows) <= MAX_FEW_ROWS:
            return None
        assert self._rows is not None
        encoded, encode, defaults = [], self._rows.encode, self._defaults
        for row in rows:
            if type(row) is not dict or not row.keys() <= self._columns:
                return None
            get = row.get
            values = [get(name, default) for name, default in defaults]
            if any(values[place] is None for place in self._required):
                return None
            try:
                each = encode(values)
            except NotExactError:
                return None
            if len(each) > _LONGEST_ROW:
                return None
            encoded.append(each)
        return encoded

    def to_batch(self, rows: object) -> pa.RecordBatch | None:
        """Returns few rows, as `encode_rows` takes them, as Arrow data. None: they need its conversions."""
        if self.encode_rows(rows) is None:
            return None
        assert isinstance(rows, list)
        assert self._defaults is not None
        values = [tuple([row.get(name, default) for name, default in self._defaults]) for row in rows]
        return pa.RecordBatch.from_struct_array(pa.array(values, self._row_type))

    def encode_keys(self, keys: object) -> list[bytes] | None:
        """Encodes one key or few, as `delete` and `lookup` take them. None: they take the path through Arrow."""
        if is_one_key(keys):
            keys = [keys]
        if type(keys) is not list or not 0 < len(keys) <= MAX_FEW_ROWS:
            return None
        encoded = [self.encode_key(key) for key in keys]
        return None if None in encoded else encoded  # type: ignore[return-value]

    def decode(self, row: bytes) -> dict[str, Any] | None:
        """Decodes a row. None: it takes the path through Arrow, because a value needs it, or the row is damaged."""
        if self._rows is None:
            return None
        try:
            return dict(zip(self._names, self._rows.decode(row), strict=True))
        except (DamagedRowError, ValueError, OverflowError):
            return None

    def to_table(self, rows: Sequence[bytes]) -> pa.Table | None:
        """Decodes rows. None: they take the path through Arrow, as in `decode`. Only if `is_exact`."""
        return self._table_of([self.decode(row) for row in rows], self._row_type)

    def to_filled_table(self, keys: Sequence[bytes], rows: Sequence[bytes | None]) -> pa.Table | None:
        """Decodes the rows of encoded keys; a key without a row gets a row that is null except for the key.

        Columns outside the key are nullable. Otherwise as `to_table`.
        """
        decoded = [
            dict(zip(self._key_names, self._keys.decode(key), strict=True)) if row is None else self.decode(row)
            for key, row in zip(keys, rows, strict=True)
        ]
        fields = [field if field.name in self._key_names else field.with_nullable(True) for field in self.shape.schema]
        return self._table_of(decoded, pa.struct(fields))

    def _table_of(self, rows: Sequence[dict[str, Any] | None], type_: pa.StructType) -> pa.Table | None:
        if None in rows:
            return None
        return pa.Table.from_batches([pa.RecordBatch.from_struct_array(pa.array(rows, type_))])


def _python_defaults(shape: TableShape) -> list[tuple[str, Any]] | None:
    """Returns each column with its value in rows that lack it. None: Python lacks one, such as a year after 9999."""
    try:
        defaults = {name: default.as_py() for name, default in shape.defaults.items()}
    except (ValueError, OverflowError):
        return None
    return [(name, defaults.get(name)) for name in shape.schema.names]
