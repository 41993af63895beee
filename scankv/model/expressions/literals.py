"""Literals of expressions: single values and lists of them, as Arrow values of storable types."""

from __future__ import annotations

import datetime as dt
import math
import struct
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from scankv.model import lazy_compute as pc
from scankv.model.errors import SchemaMismatch, UsageError
from scankv.model.types.casts import cast_exactly
from scankv.model.types.types import storable_type

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_LIST_VALUES: Final = 100_000
"""The most values in all lists of one expression."""

MAX_DECIMAL_DIGITS: Final = 38
"""The most digits of a decimal."""

_SHOWN_VALUES: Final = 5
_UNITS: Final = ("s", "ms", "us", "ns")
_PANDAS_NULLS: Final = ("NaTType", "NAType")
_INT64: Final = range(-(2**63), 2**63)
_UINT64: Final = range(2**64)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Literal:
    """One value. Immutable, hashable, picklable; equal to a literal of the same type and value, NaN to NaN.

    Attributes:
        scalar: A scalar of a storable type without nesting, or a null.
    """

    scalar: pa.Scalar

    @property
    def is_null(self) -> bool:
        """Whether the literal is SQL's NULL, with which every comparison is unknown."""
        return not self.scalar.is_valid

    @property
    def is_nan(self) -> bool:
        """Whether the literal is a NaN, with which only the comparison `!=` is true."""
        return bool(pa.types.is_floating(self.scalar.type) and not self.is_null and math.isnan(self.scalar.as_py()))

    def as_array(self) -> pa.Array:
        """Returns the value as an array of one."""
        return pa.array([self.scalar], self.scalar.type)

    def _key(self) -> tuple[str, object]:
        type_ = self.scalar.type
        if self.is_null:
            return str(type_), None
        if self.is_nan:
            return str(type_), "nan"
        if pa.types.is_floating(type_):
            return str(type_), struct.pack("<d", self.scalar.as_py())
        return str(type_), self.scalar.value if pa.types.is_temporal(type_) else self.scalar.as_py()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        type_ = self.scalar.type
        if self.is_null:
            return "None"
        if pa.types.is_temporal(type_):  # as a Python value, it would lose its nanoseconds and years over 9999
            return f"{type_}({self.scalar.cast(pa.string()).as_py()!r})"
        return repr(self.scalar.as_py())


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ValueList:
    """The values of an `is_in`, each once. Immutable, hashable, picklable.

    Attributes:
        array: The values in the order given, of a storable type without nesting; at most one null.
        candidates: The values to pass to Arrow's `is_in`, so that it matches the same rows as `=`: without null and
            NaN, and with both zeros if the list has a zero.
    """

    array: pa.Array
    candidates: pa.Array = field(init=False)

    def __post_init__(self) -> None:
        """Raises UsageError if there are too many values."""
        if len(self.array) > MAX_LIST_VALUES:
            raise UsageError(f"is_in got {len(self.array):,} values; the limit is {MAX_LIST_VALUES:,}")
        array = self.array
        if pa.types.is_float16(array.type):  # Arrow cannot compare float16
            array = array.cast(pa.float64())
        array = pc.unique(array)
        object.__setattr__(self, "array", array)
        object.__setattr__(self, "candidates", _candidates(array.drop_null()))

    @property
    def has_null(self) -> bool:
        """Whether the list has a null, so that a value that is not found is unknown rather than false, as in SQL."""
        return bool(self.array.null_count)

    def _key(self) -> tuple[str, bytes]:
        batch = pa.record_batch([self.array], names=["value"])
        return str(self.array.type), batch.serialize().to_pybytes()

    def __len__(self) -> int:
        return len(self.array)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ValueList) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((str(self.array.type), len(self.array), *self._first_literals()))

    def __repr__(self) -> str:
        more = len(self.array) - _SHOWN_VALUES
        shown = ", ".join(map(repr, self._first_literals()))
        return f"[{shown}]" if more <= 0 else f"[{shown}, ... {more:,} more]"

    def _first_literals(self) -> list[Literal]:
        return [Literal(scalar) for scalar in self.array[:_SHOWN_VALUES]]


def _candidates(values: pa.Array) -> pa.Array:
    if not pa.types.is_floating(values.type):
        return values
    # For Arrow's is_in, NaN equals NaN, and 0.0 differs from -0.0.
    values = values.filter(pc.invert(pc.is_nan(values)))
    if not pc.any(pc.equal(values, pa.scalar(0.0, values.type))).as_py():
        return values
    return pa.concat_arrays([values, pa.array([0.0, -0.0], values.type)])


def literal_of(value: object) -> Literal:
    """Converts a Python, NumPy, pandas or Arrow value to a literal without loss.

    Integers become int64 (uint64 or decimal128 if they are too large), floats float64, and datetimes `timestamp[us]`,
    in UTC if they have a time zone.

    Raises:
        UsageError: The value is not a single value that a column can have.
    """
    if isinstance(value, pa.Scalar):
        scalar = _storable(pa.array([value], value.type))[0]
        value = scalar if pa.types.is_temporal(scalar.type) else scalar.as_py()
    if isinstance(value, Decimal):
        value = _as_integer(value)
    array = pa.array([value], value.type) if isinstance(value, pa.Scalar) else _array_of([value])
    if pa.types.is_floating(array.type):  # of NumPy
        array = array.cast(pa.float64())
    elif pa.types.is_integer(array.type):
        array = _integers(array.to_pylist())
    return Literal(array[0])


def _as_integer(value: Decimal) -> Decimal | int:
    """Returns a decimal without a fraction as an integer, which can be compared with more types."""
    _, digits, exponent = value.as_tuple()
    # The exponent of a NaN or an infinity is a letter.
    if not isinstance(exponent, int) or max(len(digits) + max(exponent, 0), -exponent) > MAX_DECIMAL_DIGITS:
        raise UsageError(f"a decimal in a predicate must be a number of at most {MAX_DECIMAL_DIGITS} digits")
    return int(value) if exponent >= 0 else value


def values_of(values: object) -> ValueList:
    """Converts a list, set, NumPy array, pandas Series or Arrow array to the values of an `is_in`, without loss.

    None is SQL's NULL, and so is NaN in pandas.

    Raises:
        UsageError: The argument is of another type, its values are of several kinds, or there are too many.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        return ValueList(_storable(values))
    if hasattr(values, "__array__"):
        try:
            return ValueList(_storable(pa.array(values)))
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise UsageError(f"is_in cannot use this {type(values).__name__}: {error}") from error
    if isinstance(values, list | tuple | set | frozenset | range):
        if len(values) > MAX_LIST_VALUES:
            raise UsageError(f"is_in got {len(values):,} values; the limit is {MAX_LIST_VALUES:,}")
        return ValueList(_array_of(list(values)))
    raise UsageError(f"the values of is_in must be a list, not a {type(values).__name__}: write is_in([...])")


def _storable(array: pa.Array) -> pa.Array:
    if pa.types.is_null(array.type):
        return array
    try:
        type_ = storable_type(array.type)
        array = cast_exactly(array, type_)
    except (SchemaMismatch, TypeError, ValueError, pa.ArrowException) as error:
        raise UsageError(f"a value of type {array.type} cannot be compared with a column: {error}") from error
    if pa.types.is_nested(type_):
        raise UsageError(f"a value of type {type_} cannot be compared with a column: compare its fields")
    return array


def _array_of(values: list[Any]) -> pa.Array:
    """Converts Python values of one kind to an array.

    Raises UsageError for values of several kinds, some of which `pa.array` would silently convert.
    """
    if any(isinstance(value, pa.Scalar) and pa.types.is_temporal(value.type) for value in values):
        return _times([literal_of(value).scalar for value in values])
    plain = [value.as_py() if isinstance(value, pa.Scalar) else value for value in values]
    plain = [None if type(value).__name__ in _PANDAS_NULLS else value for value in plain]
    kinds = {_kind(value) for value in plain} - {None}
    try:
        if kinds == {"integer"}:
            return _integers(plain)
        if kinds == {"number"} or kinds == {"integer", "number"}:
            return pa.array(plain, pa.float64()) if "integer" not in kinds else _exact_floats(plain)
        if kinds in ({"decimal"}, {"integer", "decimal"}):
            return _storable(pa.array([None if v is None else Decimal(v) for v in plain]))
        if kinds == {"timestamp"} or kinds == {"timestamp with time zone"}:
            return _timestamps(plain, "UTC" if "timestamp with time zone" in kinds else None)
        if len(kinds) <= 1:
            return _storable(pa.array(plain))
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"a value of type {_types_of(plain)} cannot be compared with a column: {error}") from error
    raise UsageError(f"the values of a list must be of one kind, not {_types_of(plain)}")


def _times(scalars: list[pa.Scalar]) -> pa.Array:
    """Converts Arrow times to their finest unit. Python values would lose nanoseconds and years over 9999."""
    types = {scalar.type for scalar in scalars if scalar.is_valid}
    if len({(str(type_).partition("[")[0].rstrip("3264"), getattr(type_, "tz", None)) for type_ in types}) > 1:
        raise UsageError(f"the values of a list must be of one kind, not {', '.join(sorted(map(str, types)))}")
    finest = max(types, key=lambda type_: _UNITS.index(getattr(type_, "unit", "s")), default=pa.null())
    try:
        return pa.concat_arrays([cast_exactly(pa.array([scalar], scalar.type), finest) for scalar in scalars])
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise UsageError(f"these values cannot be in one list: {error}") from error


def _types_of(values: Iterable[object]) -> str:
    return ", ".join(sorted({type(value).__name__ for value in values if value is not None}))


def _kind(value: object) -> str | None:
    """Returns the kind as which a value is compared; None for a null. Any other type is its own kind."""
    if value is None:
        return None
    type_name = type(value).__name__
    if isinstance(value, bool) or type_name in {"bool_", "bool"}:
        return "bool"
    for classes, kind in (((int,), "integer"), ((float,), "number"), ((Decimal,), "decimal"), ((str,), "text")):
        if isinstance(value, classes):
            return kind
    if isinstance(value, dt.datetime):
        return "timestamp" if value.tzinfo is None else "timestamp with time zone"
    return type_name


def _integers(values: list[int | None]) -> pa.Array:
    values = [None if value is None else int(value) for value in values]  # converts members of an IntEnum
    whole = [value for value in values if value is not None]
    if all(value in _INT64 for value in whole):
        return pa.array(values, pa.int64())
    if all(value in _UINT64 for value in whole):
        return pa.array(values, pa.uint64())
    return pa.array(values, pa.decimal128(38, 0))


def _exact_floats(values: list[Any]) -> pa.Array:
    for value in values:
        if isinstance(value, int) and int(float(value)) != value:
            raise ValueError("an integer in a list with floats cannot be represented as a float")
    return pa.array([None if value is None else float(value) for value in values], pa.float64())


def _timestamps(values: list[Any], zone: str | None) -> pa.Array:
    # Arrow treats a pandas Timestamp as a datetime and drops its nanoseconds.
    unit = "ns" if any(getattr(value, "nanosecond", 0) for value in values) else "us"
    return pa.array(values, pa.timestamp(unit, zone))
