"""Describes the types of columns, by asking the code that parses, stores and converts them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from aio_client._input.other_rows import polars_schema
from aio_client._integrations.pandas_frames import frame_of
from scankv.formats.json_text import to_json
from scankv.model.errors import ScanKvError
from scankv.model.types.type_parser import TYPE_WORDS
from scankv.model.types.types import format_type, is_key_type, parse_schema, storable_type
from spark_bridge.types import spark_schema

if TYPE_CHECKING:
    from collections.abc import Callable

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
TYPES: list[pa.DataType] = [
    *INTEGERS,
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary()),
    *(pa.decimal128(10, 2), pa.decimal128(5, -2), pa.date32()),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    pa.timestamp("us", "UTC"),
    *(pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int64())),
]
"""One type of each kind that a table stores."""

OTHERS: list[pa.DataType] = [
    *(pa.large_string(), pa.string_view(), pa.large_binary(), pa.binary_view(), pa.binary(4)),
    *(pa.dictionary(pa.int32(), pa.string()), pa.run_end_encoded(pa.int32(), pa.int64())),
    *(pa.large_list(pa.int64()), pa.list_view(pa.int64()), pa.large_list_view(pa.int64()), pa.list_(pa.int64(), 2)),
    *(pa.decimal32(9, 2), pa.decimal64(18, 2), pa.decimal256(38, 2), pa.decimal256(76, 2)),
    *(pa.date64(), pa.duration("s"), pa.month_day_nano_interval(), pa.null()),
    *(pa.dense_union([pa.field("a", pa.int64())]), pa.sparse_union([pa.field("a", pa.int64())])),
]
"""Types that are stored as another, or refused."""

FORMS = ("", "(10, 2)", "(20)", "[s]", "[ms]", "[us]", "[ns]", "[us, tz=UTC]")
ONES: dict[str, object] = {
    "list": [1],
    "struct": {"a": 1},
    "map": [("a", 1)],
    "string": "a",
    "binary": b"a",
    "bool": True,
}


def describe_types() -> str:
    """Returns the types with their names, what other systems make of them, and what becomes of all other types."""
    names = _sql_names()
    lines = ["## Names and values", "", "| type | also written as | least and greatest value | in a key |"]
    lines.append("|---|---|---|---|")
    for type_ in TYPES:
        also = ", ".join(f"`{name}`" for name in names.get(type_, ()) if name != format_type(type_))
        lines.append(f"| {_name(type_)} | {also} | {_limits(type_)} | {'yes' if is_key_type(type_) else 'no'} |")
    lines += ["", "## In other systems", "", "```{table}", ":class: conversions", ""]
    lines += ["| type | pandas with NumPy dtypes | Polars | Spark | JSON |", "|---|---|---|---|---|"]
    lines += [f"| {_name(type_)} | {' | '.join(map(_ask, _converters(type_)))} |" for type_ in TYPES]
    lines += ["```", "", "## Other types of Arrow", "", "| type | stored as |", "|---|---|"]
    lines += [f"| {_plain(type_)} | {_stored_as(type_)} |" for type_ in OTHERS]
    return "\n".join(lines) + "\n"


def _sql_names() -> dict[pa.DataType, list[str]]:
    found: dict[pa.DataType, list[str]] = {}
    for text in (word + form for word in TYPE_WORDS for form in FORMS):
        try:
            found.setdefault(parse_schema(f"c {text}").field(0).type, []).append(text)
        except ScanKvError:
            continue
    return found


def _limits(type_: pa.DataType) -> str:
    if type_ in INTEGERS:
        bits, signed = type_.bit_width, not str(type_).startswith("u")
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        return f"{low:,} to {high:,}"
    return "up to 38 digits" if pa.types.is_decimal(type_) else ""


def _example(type_: pa.DataType) -> pa.Array:
    if pa.types.is_temporal(type_):
        return pa.array([0], pa.int64() if type_.bit_width == 64 else pa.int32()).view(type_)
    value = ONES.get(str(type_).partition("<")[0], 100 if pa.types.is_decimal(type_) else 1)
    return pa.array([value], type_)


def _converters(type_: pa.DataType) -> list[Callable[[], object]]:
    schema, rows = pa.schema([("c", type_)]), pa.table({"c": _example(type_)})
    return [
        lambda: frame_of(rows, "numpy").dtypes["c"],
        lambda: polars_schema(schema)["c"],
        lambda: spark_schema(schema)[0].dataType.simpleString(),
        lambda: to_json(rows["c"].combine_chunks())[0].as_py(),
    ]


def _ask(convert: Callable[[], object]) -> str:
    try:
        return f"`{convert()}`"
    except ScanKvError:
        return "refused"


def _stored_as(type_: pa.DataType) -> str:
    try:
        return _name(storable_type(type_))
    except ScanKvError as error:
        return f"refused: {error.message.rpartition('; ')[2]}".replace("<", "&lt;")


def _name(type_: pa.DataType) -> str:
    return f"`{format_type(type_)}`"


def _plain(type_: pa.DataType) -> str:
    return f"`{type_}`"
