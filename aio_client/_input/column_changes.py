"""Checks the changes of a table's columns, and converts them to the form of the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import pyarrow as pa

from aio_client._input.arguments import is_text
from scankv.model.errors import UsageError
from scankv.model.types.default_values import values_to_ipc

_MAX_INT64: Final = 2**63 - 1


def texts_of(values: object, option: str) -> dict[str, str]:
    """Returns the argument as text by column name. Raises UsageError for other values."""
    items = _by_name(values, option)
    for name, value in items.items():
        if not is_text(value):
            raise UsageError(f'{option} must have text for column "{name}", not {value!r:.80}', option=option)
    return items


def types_of(values: object, option: str) -> bytes:
    """Returns types by column name as an Arrow IPC schema message; empty without types. Raises UsageError."""
    items = _by_name(values, option)
    for name, value in items.items():
        if not isinstance(value, pa.DataType):
            raise UsageError(
                f'{option} must have a pyarrow type, such as pyarrow.int64(), for column "{name}", not {value!r:.80}',
                option=option,
            )
    return cast("bytes", pa.schema(list(items.items())).serialize().to_pybytes()) if items else b""


def defaults_of(values: object, option: str) -> bytes:
    """Returns values by column name as an Arrow IPC stream of one row; empty without values. Raises UsageError."""
    scalars = {}
    for name, value in _by_name(values, option).items():
        try:
            scalars[name] = value if isinstance(value, pa.Scalar) else pa.scalar(value, _type_of(value))
        except (pa.ArrowException, OverflowError) as error:
            raise UsageError(
                f'{option}: {value!r:.80} for column "{name}" is no value of an Arrow type: {error}', option=option
            ) from error
    return values_to_ipc(scalars)


def _by_name(values: object, option: str) -> dict[str, Any]:
    if values is None:
        return {}
    if not isinstance(values, Mapping) or not all(map(is_text, values)):
        raise UsageError(f"{option} must be a mapping by column name, not {values!r:.80}", option=option)
    return dict(values)


def _type_of(value: object) -> pa.DataType | None:
    """Returns the type of a value that Arrow does not infer. None: Arrow infers it."""
    return pa.uint64() if isinstance(value, int) and value > _MAX_INT64 else None
