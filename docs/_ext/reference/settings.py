"""The server's settings, from the dataclass that holds them and the ranges that it checks."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields
from typing import get_type_hints

from streaming_server.config import ServerConfig

UNITS = {"_seconds": "seconds", "_bytes": "bytes", "_share": "share (1 is all)"}
KINDS = {int: "integer", float: "number", bool: "true or false", str: "text"}


def describe_settings() -> str:
    """A heading for each setting, with its meaning, default, unit and environment variable."""
    meanings = dict(re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", inspect.cleandoc(ServerConfig.__doc__ or ""), re.MULTILINE))
    kinds = get_type_hints(ServerConfig)
    parts = []
    for field in fields(ServerConfig):
        name = field.name
        unit = next((unit for ending, unit in UNITS.items() if name.endswith(ending)), KINDS.get(kinds[name], ""))
        default = "required" if field.default is MISSING else _show(field.default)
        parts.append(
            f"## `{name}`\n\n{' '.join(meanings[name].split())}\n\n"
            f"| default | unit | environment |\n|---|---|---|\n| {default} | {unit or '—'} | `SCANKV_{name.upper()}` |\n"
        )
    return "\n".join(parts)


def _show(value: object) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return "none"
    if isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0:
        return f"`{value}` ({value >> 20} MiB)"
    if isinstance(value, float) and value.is_integer():
        return f"`{int(value)}`"
    return f"`{value}`"
