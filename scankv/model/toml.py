"""Formats values as TOML, which the standard library's `tomllib` can only read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def toml_value(value: Any) -> str:  # noqa: ANN401  # it says below which ones
    """Formats a string, bool, number, list or mapping in one line of TOML.

    Raises:
        TypeError: The value is of another type.
    """
    match value:
        case str():
            # TOML has the same escapes as JSON, but also requires one for this character.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case Mapping():
            pairs = [f"{toml_value(name)} = {toml_value(each)}" for name, each in value.items()]
            return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
        case list() | tuple():
            return f"[{', '.join(map(toml_value, value))}]"
    raise TypeError(f"TOML has no {type(value).__name__}")
