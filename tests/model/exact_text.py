"""CSV and JSON of the values of the model, written and read without the code that is tested."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow.types as pat

from tests.model.exact_calendar import (
    clock_text,
    date_text,
    parse_clock,
    parse_date,
    parse_timestamp,
    timestamp_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from tests.model.exact_values import Plain


def scalar_text(value: Plain, type_: pa.DataType) -> str:
    """Returns the text of a value that is not null and not nested, as documented for CSV."""
    if pat.is_boolean(type_):
        return "true" if value else "false"
    if pat.is_binary(type_):
        return bytes(value).hex()
    if pat.is_date32(type_):
        return date_text(value)
    if pat.is_time(type_):
        return clock_text(value, type_.unit)
    if pat.is_timestamp(type_):
        return timestamp_text(value, type_.unit, type_.tz)
    return str(value)


def parse_scalar(text: str, type_: pa.DataType) -> Plain:
    """Returns the value of a text; the inverse of `scalar_text`."""
    if pat.is_boolean(type_):
        return {"true": True, "false": False}[text]
    if pat.is_integer(type_):
        return int(text)
    if pat.is_floating(type_):
        return _rounded(text, type_)
    if pat.is_decimal(type_):
        return Decimal(text)
    if pat.is_binary(type_):
        return bytes.fromhex(text)
    if pat.is_date32(type_):
        return parse_date(text)
    if pat.is_time(type_):
        return parse_clock(text, type_.unit)
    if pat.is_timestamp(type_):
        return parse_timestamp(text, type_.unit, type_.tz)
    return text


def _rounded(number: str | Decimal | float, type_: pa.DataType) -> float:
    """Returns the nearest float of a type: a narrow one has fewer digits in a text."""
    return float(type_.to_pandas_dtype()(float(number)))


def json_text(value: Plain, type_: pa.DataType) -> str:
    """Returns a value as JSON."""
    if value is None:
        return "null"
    if pat.is_map(type_):
        entries = [
            f'{{"key": {json_text(key, type_.key_type)}, "value": {json_text(item, type_.item_type)}}}'
            for key, item in value
        ]
        return f"[{', '.join(entries)}]"
    if pat.is_struct(type_):
        fields = [f"{json.dumps(f.name)}: {json_text(value[f.name], f.type)}" for f in type_.fields]
        return f"{{{', '.join(fields)}}}"
    if pat.is_nested(type_):
        return f"[{', '.join(json_text(each, type_.value_type) for each in value)}]"
    if pat.is_floating(type_):
        return json.dumps(value)
    if pat.is_boolean(type_) or pat.is_integer(type_) or pat.is_decimal(type_):
        return scalar_text(value, type_)
    return json.dumps(scalar_text(value, type_), ensure_ascii=len(str(value)) % 2 == 0)


def parse_json(text: str | bytes) -> Any:  # JSON
    """Parses JSON with all numbers as exact decimals, and -0 as a number with a sign."""
    return json.loads(text, parse_int=Decimal, parse_float=Decimal)


def of_json(parsed: Any, type_: pa.DataType) -> Plain:  # JSON
    """Returns the value of what `parse_json` has parsed. Numbers of portable JSON may be strings."""
    if parsed is None:
        return None
    if pat.is_map(type_):
        return [(of_json(each["key"], type_.key_type), of_json(each["value"], type_.item_type)) for each in parsed]
    if pat.is_struct(type_):
        assert parsed.keys() == set(type_.names), parsed
        return {field.name: of_json(parsed[field.name], field.type) for field in type_.fields}
    if pat.is_nested(type_):
        return [of_json(each, type_.value_type) for each in parsed]
    if pat.is_boolean(type_):
        assert isinstance(parsed, bool)
        return parsed
    if pat.is_floating(type_):
        return _rounded(parsed, type_)
    if pat.is_integer(type_):
        assert Decimal(parsed) == int(parsed)
        return int(parsed)
    if pat.is_decimal(type_):
        return Decimal(parsed)
    assert isinstance(parsed, str), f"{parsed!r} for {type_}"
    return parse_scalar(parsed, type_)


def field_text(value: Plain, type_: pa.DataType) -> str | None:
    """Returns a value as the text of a CSV field, not quoted. None is null."""
    if value is None:
        return None
    return json_text(value, type_) if pat.is_nested(type_) else scalar_text(value, type_)


def csv_field(text: str | None) -> str:
    """Returns a CSV field. Null is empty, an empty text is quoted."""
    if text is None:
        return ""
    plain = text and text == text.strip() and not set(text) & set('",\r\n;|\t')
    return text if plain else '"' + text.replace('"', '""') + '"'


def csv_text(schema: pa.Schema, rows: Sequence[dict[str, Plain]]) -> str:
    """Returns rows as CSV with a header."""
    lines = [",".join(csv_field(name) for name in schema.names)]
    lines += [",".join(csv_field(field_text(row[f.name], f.type)) for f in schema) for row in rows]
    return "\n".join(lines) + "\n"


def parse_csv(text: str) -> list[list[str | None]]:
    """Parses CSV as RFC 4180 has it. An empty field that is not quoted is None."""
    rows: list[list[str | None]] = []
    row: list[str | None] = []
    at = 0
    while at < len(text):
        if text[at] == '"':
            end = at + 1
            while text[end] != '"' or text[end : end + 2] == '""':
                end += 2 if text[end] == '"' else 1
            row.append(text[at + 1 : end].replace('""', '"'))
            end += 1
        else:
            end = min((text.find(mark, at) % (len(text) + 1) for mark in ",\n"), default=len(text))
            row.append(text[at:end] or None)
        if text[end : end + 1] == "\n":
            rows.append(row)
            row = []
        at = end + 1
    assert not row, "the last line has no newline"
    return rows


def of_field(text: str | None, type_: pa.DataType) -> Plain:
    """Returns the value of a CSV field."""
    if text is None:
        return None
    return of_json(parse_json(text), type_) if pat.is_nested(type_) else parse_scalar(text, type_)
