"""Says why a line of JSON is not a row of a table. It parses in Python, because only bad lines come here."""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pat

from scankv.formats.bounds import BeyondBoundsError, check_json_levels
from scankv.formats.columns import check_no_others
from scankv.formats.exact_floats import InexactNumberError, check_json
from scankv.formats.json_text import infer_json_lines, read_json_lines, wire_type
from scankv.formats.text import not_a_value
from scankv.model.errors import SchemaMismatch
from scankv.model.types.types import format_type

_LONGEST_SHOWN: Final = 40


def reason_of(line: bytes, schema: pa.Schema) -> str:
    """Returns why one line cannot be read as a row of a schema."""
    try:
        # First, because Python's parser uses the stack for each level, too.
        check_json_levels(line)
        if changed := _changed_number(line, schema):
            return changed
        found = infer_json_lines(line).schema
        check_no_others(found.names, schema)
    except BeyondBoundsError as error:
        return f"the line {error}"
    except ValueError as error:
        return str(error)
    except SchemaMismatch as error:
        return error.message
    for field in schema:
        try:
            read_json_lines(line, pa.schema([field]), other_fields="ignore")
        except ValueError as error:
            given = _json_type(found.field(field.name).type)
            if not _may_hold(wire_type(field.type), given):
                return f'column "{field.name}" is {given}, not {format_type(field.type)}'
            return f'column "{field.name}": {_shown(line, field.name)} {not_a_value(error, field.type)}'
    return "not a row of this table"


def _changed_number(line: bytes, schema: pa.Schema) -> str | None:
    """Returns the reason if a float would change a number. Looked for first, since pyarrow does not name the column."""
    for field in schema:
        try:
            check_json(line, pa.schema([field]))
        except InexactNumberError as error:
            return f'column "{field.name}": {error.shown} {error}'
        except ValueError:
            return None
    return None


def _parse(line: bytes, **options: Any) -> dict[str, Any]:  # noqa: ANN401  # those of json.loads
    """Returns the object in a line; empty if the line is not an object."""
    try:
        row = json.loads(line, **options)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _shown(line: bytes, name: str) -> str:
    shown = json.dumps(_parse(line).get(name), ensure_ascii=False)
    return shown if len(shown) <= _LONGEST_SHOWN else shown[:_LONGEST_SHOWN] + "..."


def _json_type(type_: pa.DataType) -> pa.DataType:
    """Returns a type that pyarrow has inferred from JSON, with text in place of what looked like a timestamp."""
    if pat.is_timestamp(type_):
        return pa.string()
    if pat.is_list(type_):
        return pa.list_(_json_type(type_.value_type))
    if pat.is_struct(type_):
        return pa.struct([(field.name, _json_type(field.type)) for field in type_.fields])
    return type_


def _may_hold(wire: pa.DataType, given: pa.DataType) -> bool:
    """Returns whether a wire type takes JSON values of a type, so that only the value can be wrong."""
    if pat.is_null(given) or wire == given:
        return True
    if pat.is_list(wire) and pat.is_list(given):
        return _may_hold(wire.value_type, given.value_type)
    if pat.is_struct(wire) and pat.is_struct(given):
        types = {field.name: field.type for field in wire.fields}
        return all(each.name in types and _may_hold(types[each.name], each.type) for each in given.fields)
    is_number = pat.is_integer(wire) or pat.is_floating(wire) or pat.is_decimal(wire)
    return is_number and (pat.is_integer(given) or (pat.is_floating(given) and not pat.is_integer(wire)))
