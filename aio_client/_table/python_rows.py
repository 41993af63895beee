"""Single rows and keys of one shape of a table as Python values, without Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from scankv.model.rows.key_values import KeyValues
from scankv.model.rows.row_values import DamagedRowError, NotExactError, RowValues, has_row_values

if TYPE_CHECKING:
    from aio_client._table.shape import TableShape


class PythonRows:
    """Encodes keys and decodes rows of one shape of a table, where that is possible without Arrow. Immutable."""

    def __init__(self, shape: TableShape) -> None:
        """Prepares the functions, which takes a millisecond."""
        types = shape.schema.types
        self.shape: Final = shape
        self._names = shape.schema.names
        self._key_names = shape.key_schema.names
        self._keys = KeyValues(shape.key_schema.types)
        self._rows = RowValues(shape.description.schema_id, types) if has_row_values(types) else None

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

    def decode(self, row: bytes) -> dict[str, Any] | None:
        """Decodes a row. None: it takes the path through Arrow, because it is of another shape, or damaged."""
        assert self._rows is not None
        try:
            return dict(zip(self._names, self._rows.decode(row), strict=True))
        except (DamagedRowError, ValueError, OverflowError):
            return None
