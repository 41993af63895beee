"""Describes the server's settings, from their dataclass and the ranges that it checks."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, Field, fields
from typing import Any, get_type_hints

from streaming_server.config import NOT_FROM_ENVIRONMENT, RANGES, ServerConfig

from .sentences import first_sentence
from .summary_tables import summary_table

UNITS = {"_seconds": "seconds", "_bytes": "bytes", "_bytes_in_flight": "bytes"}
KINDS = {int: "integer", float: "number", bool: "`true` or `false`", tuple[str, ...]: "names, separated by commas"}
# The settings of each group, by their names or prefixes of these. A setting belongs to the first group that fits.
GROUPS = {
    "The server": "data host port log_level insecure drain_seconds storage_threads",
    "Monitoring": "metrics log_format slow_request",
    "Security": "tokens tls_ audit_log max_caller",
    "Memory and files": "block_cache write_buffer result_cache max_open_buckets bucket_idle",
    "Requests and connections": "max_request max_un request_r max_connection max_calls min_ping max_waiting_c",
    "Scans": "chunk_bytes max_live max_waiting_scans admission stall max_scan heartbeat",
    "Changes and consumers": "max_followers follow log_ catch_up consumer max_consumers max_retention_hold retention",
    "Snapshots": "snapshot max_snapshot",
    "Writers and transactions": "writer max_writers max_transaction transaction committed",
    "Columnar bases": "base_",
    "Clocks": "max_clock clock_trust",
    "Aggregators": "aggregators",
}
SIZES = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def describe_settings() -> str:
    """Returns, by group, a table of the settings, and the meaning, default, range and variable of each."""
    meanings = _read_meanings()
    left = {field.name: field for field in fields(ServerConfig)}
    parts = []
    for group, beginnings in GROUPS.items():
        names = [name for name in left if name.startswith(tuple(beginnings.split()))]
        parts += [f"## {group}\n", _table([left[name] for name in names], meanings)]
        parts += (_describe(left.pop(name), meanings[name]) for name in names)
    if left:
        parts += ["## Other\n", _table(list(left.values()), meanings)]
        parts += (_describe(field, meanings[name]) for name, field in left.items())
    return "\n".join(parts)


def _table(settings: list[Field[Any]], meanings: dict[str, str]) -> str:
    rows = [
        (f"[`{field.name}`](#{field.name})", _default(field), first_sentence(meanings[field.name]))
        for field in settings
    ]
    return summary_table("setting | default | meaning", rows, "settings")


def _default(field: Field[Any]) -> str:
    return "required" if field.default is MISSING else _show(field.default, _unit(field))


def _unit(field: Field[Any]) -> str:
    kind = get_type_hints(ServerConfig)[field.name]
    return next((unit for ending, unit in UNITS.items() if field.name.endswith(ending)), KINDS.get(kind, "text"))


def _read_meanings() -> dict[str, str]:
    docstring = inspect.cleandoc(ServerConfig.__doc__ or "")
    return dict(re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", docstring, re.MULTILINE))


def _describe(field: Field[Any], meaning: str) -> str:
    unit = _unit(field)
    facts = [
        "required" if field.default is MISSING else f"default {_show(field.default, unit)}",
        unit,
        "not in the environment"
        if field.name in NOT_FROM_ENVIRONMENT
        else f"environment `SCANKV_{field.name.upper()}`",
    ]
    if field.name in RANGES:
        low, high = RANGES[field.name]
        facts.insert(2, f"{_show(low, unit)} to {_show(high, unit)}")
    return f"### `{field.name}`\n\n{' '.join(meaning.split())}\n\n*{' · '.join(facts)}*\n"


def _show(value: object, unit: str) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return ", ".join(f"`{name}`" for name in value) or "none"
    if unit == "bytes" and isinstance(value, int):
        for name, size in SIZES:
            if value >= size and value % size == 0:
                return f"{value // size} {name}"
    if isinstance(value, int | float):
        return f"{value:{',' if value >= 10_000 else ''}.0f}" if float(value).is_integer() else f"{value}"
    return f"`{value}`" if value != "" else "none"
