"""Documents the Python API with autodoc directives for the names that a page lists."""

from __future__ import annotations

import inspect
from importlib import import_module


def describe_names(module: str, *names: str) -> str:
    """Returns a section for each of the named members of a public module, with all of their own members."""
    found = import_module(module)
    blocks = [f"```{{eval-rst}}\n.. currentmodule:: {module}\n```\n"]
    for name in names:
        member = getattr(found, name)
        if inspect.ismodule(member):
            kind, options = "automodule", "   :members:\n"
        elif isinstance(member, type):
            kind, options = "autoclass", _class_options(member)
        elif callable(member):
            kind, options = "autofunction", ""
        else:
            kind, options = "autodata", "   :no-value:\n"
        blocks.append(f"## `{name}`\n\n```{{eval-rst}}\n.. {kind}:: {module}.{name}\n{options}```\n")
    return "\n".join(blocks)


def _class_options(member: type) -> str:
    foreign = [base.__name__ for base in member.__mro__ if base.__module__ in {"builtins", "typing", "enum", "abc"}]
    options = f"   :members:\n   :inherited-members: {', '.join(foreign)}\n"
    if (inspect.getattr_static(member, "__init__").__doc__ or "").startswith("Called by"):
        options += "   :exclude-members: __init__\n"
    return options
