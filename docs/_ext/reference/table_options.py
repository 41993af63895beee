"""Describes the options of tables, from their dataclass and the values that it checks."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields

from scankv.model.errors import InvalidOption
from scankv.model.tables import options
from scankv.model.tables.options import TableOptions


def describe_table_options() -> str:
    """Returns a table of all options, the delete behaviors of each merge engine, and a section for each option."""
    docstring = inspect.cleandoc(TableOptions.__doc__ or "")
    meanings = dict(re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", docstring, re.MULTILINE))
    names = [field.name for field in fields(TableOptions)]
    lines = ["| option | values | default | can change |", "|---|---|---|---|"]
    lines += [
        f"| [`{name}`](#{name}) | {_values(name)} | {_default(name)} | {'yes' if _why_fixed(name) is None else 'no'} |"
        for name in names
    ]
    lines += ["", "## With each merge engine", "", "The first delete behavior is the default.", ""]
    lines += ["| `merge_engine` | `delete_behavior` | `changelog` |", "|---|---|---|"]
    lines += [
        f"| `{engine}` | {_code(options._DELETE_BEHAVIORS[engine])} | {_code(_changelogs(engine))} |"
        for engine in options.MERGE_ENGINES
    ]
    lines += ["", "## Each option", ""]
    for name in names:
        why = _why_fixed(name)
        change = "can change with `alter_table`" if why is None else f"cannot change, because {why}"
        if name == "changelog":
            change += "; not to or from `input`"
        lines += [f"### `{name}`", "", " ".join(meanings[name].split()), ""]
        lines += [f"*{_values(name)} · default {_default(name)} · {change}*", ""]
    return "\n".join(lines)


def _values(name: str) -> str:
    if name in options._VALUES:
        return _code(options._VALUES[name])
    if name in options._RANGES:
        low, high = options._RANGES[name]
        return f"{low:,} to {high:,}"
    return f"text of at most {options._MAX_TEXT} characters"


def _default(name: str) -> str:
    text = options._texts(TableOptions())[name]
    if text in ("", "0"):
        return "none" if text == "" else "0"
    return f"{int(text):,}" if text.isdigit() else f"`{text}`"


def _why_fixed(name: str) -> str | None:
    return options._FIXED.get(name)


def _changelogs(engine: str) -> list[str]:
    return [value for value in options._VALUES["changelog"] if _is_allowed(engine, value)]


def _is_allowed(engine: str, changelog: str) -> bool:
    try:
        TableOptions(merge_engine=engine, changelog=changelog)
    except InvalidOption:
        return False
    return True


def _code(values: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)
