"""Documents the Python API: a page for each class, and a summary wherever several things stand on one page."""

from __future__ import annotations

import inspect
import re
from enum import Enum
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sphinx.errors import ExtensionError
from sphinx.pycode import ModuleAnalyzer

from .docstrings import convert_spans
from .member_groups import FIRST_CALLS, GROUPS
from .sentences import first_sentence
from .sidebar import list_in_sidebar
from .summary_tables import summary_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FOREIGN = {"builtins", "typing", "enum", "abc", "pyarrow"}
ATTRIBUTE = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)


def describe_names(module: str, *names: str) -> str:
    """Returns a summary of the named members of a public module, all functions, and the pages of classes."""
    found = {name: getattr(import_module(module), name) for name in names}
    rows = [
        (f"[`{name}`]({module}.{name}.md)" if has_page(member) else f"[`{name}`](#{name.lower()})", _first(member))
        for name, member in found.items()
    ]
    blocks = [summary_table("name | what it does", rows)]
    for name, member in found.items():
        if not has_page(member):
            blocks.append(f"## `{name}`\n\n{_describe_alone(module, name, member)}")
    blocks.append(list_in_sidebar([f"{name} <{module}.{name}>" for name, member in found.items() if has_page(member)]))
    return "\n".join(blocks)


def has_page(member: object) -> bool:
    """Returns whether a member of a module has a page of its own."""
    return isinstance(member, type)


def describe_class(module: str, name: str) -> str:
    """Returns the summary of a class, its description, and its members in the order of the summary."""
    cls = getattr(import_module(module), name)
    groups = list(_group(name, _members_of(cls)))
    summary = [
        _rst_table(group, [(_role(module, name, each, cls), _first(cls, each)) for each in each_of])
        for group, each_of in groups
    ]
    attributes = _attributes_of(cls)
    if attributes:
        rows = [(f":py:attr:`~{module}.{name}.{each}`", first_sentence(text)) for each, text in attributes.items()]
        summary.insert(0, _rst_table("Attributes", rows))
    init = "exclude-members: __init__, __new__" if _is_made_elsewhere(cls) else "members: __init__"
    blocks = [
        f"{_first(cls)}\n",
        _rst(f".. currentmodule:: {module}\n\n" + "\n".join(summary)),
        "## Description\n\n" + _rst(f".. autoclass:: {module}.{name}\n   :{init}\n"),
    ]
    for group, each_of in groups:
        directives = "\n".join(f".. {_directive(cls, each)}:: {module}.{name}.{each}" for each in each_of)
        blocks.append(f"## {group}\n\n{_rst(directives)}")
    return "\n".join(blocks)


def describe_first_calls() -> str:
    """Returns a summary of the calls that most programs begin with."""
    rows = []
    for full in FIRST_CALLS:
        cls, _, member = full.rpartition(".")
        found = getattr(import_module("scankv"), cls or member)
        text = _first(found, member) if cls else _first(found)
        shown = f":py:meth:`{cls}.{member}() <scankv.{full}>`" if cls else f":py:func:`{member}() <scankv.{full}>`"
        rows.append((shown, text))
    return _rst(_rst_table("", rows))


def _describe_alone(module: str, name: str, member: object) -> str:
    """Returns what has no page of its own: a function, a module or a constant."""
    if inspect.ismodule(member):
        public = [each for each in member.__all__ if callable(getattr(member, each))]
        rows = [(f":py:obj:`{name}.{each} <{module}.{name}.{each}>`", _first(getattr(member, each))) for each in public]
        return _rst(_rst_table("", rows) + f"\n.. automodule:: {module}.{name}\n   :members:\n")
    if callable(member):
        return _rst(f".. autofunction:: {module}.{name}\n")
    return _rst(f".. autodata:: {module}.{name}\n   :no-value:\n")


def _members_of(cls: type) -> dict[str, object]:
    """Returns the public members that have a description, in the order of the code, those of bases after them."""
    found: dict[str, object] = {}
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] in FOREIGN:
            continue
        described = {name for owner, name in _described_in(base.__module__) if owner == base.__name__}
        for name, value in vars(base).items():
            inner = getattr(value, "__func__", value)
            is_callable = inspect.isroutine(value) or isinstance(value, property | classmethod | staticmethod)
            has_text = name in described or (is_callable and inspect.getdoc(inner) is not None)
            if not name.startswith("_") and has_text:
                found.setdefault(name, value)
    return found


@cache
def _described_in(module: str) -> frozenset[tuple[str, str]]:
    try:
        return frozenset(ModuleAnalyzer.for_module(module).find_attr_docs())
    except ExtensionError:
        return frozenset()


def _group(name: str, members: dict[str, object]) -> Iterator[tuple[str, list[str]]]:
    """Yields the members in groups: those that the class has in `GROUPS`, then other methods, then properties."""
    left = dict(members)
    for group, names in GROUPS.get(name, {}).items():
        present = [each for each in names.split() if left.pop(each, None) is not None]
        if present:
            yield group, present
    methods = [each for each, value in left.items() if _is_method(value)]
    others = [each for each in left if each not in methods]
    if methods:
        yield "Methods", methods
    if others:
        yield "Properties", others


def _is_method(value: object) -> bool:
    return inspect.isroutine(value) or isinstance(value, classmethod | staticmethod)


def _directive(cls: type, name: str) -> str:
    value = inspect.getattr_static(cls, name)
    if isinstance(value, property):
        return "autoproperty"
    return "automethod" if _is_method(value) else "autoattribute"


def _role(module: str, name: str, member: str, cls: type) -> str:
    role = "meth" if _is_method(inspect.getattr_static(cls, member)) else "attr"
    return f":py:{role}:`~{module}.{name}.{member}`"


def _attributes_of(cls: type) -> dict[str, str]:
    """Returns the attributes that the docstring of a class lists."""
    text = inspect.cleandoc(cls.__doc__ or "").partition("\nAttributes:\n")[2]
    return {name: " ".join(what.split()) for name, what in ATTRIBUTE.findall(re.split(r"\n(?=\S)", text)[0])}


def _is_made_elsewhere(cls: type) -> bool:
    return issubclass(cls, Enum) or (inspect.getattr_static(cls, "__init__").__doc__ or "").startswith("Called by")


def _first(owner: Any, member: str = "") -> str:  # noqa: ANN401  # a function, class or module
    """Returns the first sentence of the description of something, or of a member of it."""
    if not member:
        return first_sentence(inspect.getdoc(owner) or "")
    value = inspect.getattr_static(owner, member)
    if isinstance(value, property) or _is_method(value):
        return first_sentence(inspect.getdoc(getattr(owner, member)) or "")
    for base in owner.__mro__:
        if (base.__name__, member) in _described_in(base.__module__):
            lines = ModuleAnalyzer.for_module(base.__module__).find_attr_docs()[base.__name__, member]
            return first_sentence("\n".join(lines))
    return ""


def _rst_table(group: str, rows: Iterable[tuple[str, str]]) -> str:
    title = f" {group}" if group else ""
    lines = "".join(f"   * - {name}\n     - {convert_spans(text)}\n" for name, text in rows)
    return f".. list-table::{title}\n   :class: summary\n   :widths: auto\n\n{lines}"


def _rst(text: str) -> str:
    return f"```{{eval-rst}}\n{text.rstrip()}\n```\n"
