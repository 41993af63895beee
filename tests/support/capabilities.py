"""Finds what is not true in the table of capabilities."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import re
import tomllib
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from scankv.cli.app import app
from scankv.model.tables.options import TableOptions
from streaming_server.config import ServerConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

ROOT = Path(__file__).parents[2]
PUBLIC = ("scankv", "scankv.sync", "scankv.mirror", "scankv.spark", "scankv.testing")
LEFT_OUT = re.compile(r"mark\.(skip|skipif|xfail|soak|alone)\b")
"""A test with such a mark may not run in `make test`."""

SKIPPING = re.compile(r"\bpytest\.(skip|importorskip|xfail)\(")
"""A file with such a call may leave out tests."""


def load_generator() -> ModuleType:
    """Returns the module that writes the pages."""
    spec = importlib.util.spec_from_file_location("generate_capabilities", ROOT / ".ci" / "generate_capabilities.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_lies(
    rows: Mapping[str, Mapping[str, Any]], outcomes: Mapping[str, str | None], names: frozenset[str]
) -> list[str]:
    """Returns what is wrong with the table.

    Args:
        rows: The rows by their names.
        outcomes: What each attempt has ended with: None if the feature works, else the refusal.
        names: All public names.
    """
    return [f"{name}: {lie}" for name, row in rows.items() for lie in _lies_of(row, outcomes, names)]


def _lies_of(row: Mapping[str, Any], outcomes: Mapping[str, str | None], names: frozenset[str]) -> Iterator[str]:
    has, lacks = "has" in row, "lacks" in row
    if has == lacks:
        yield "needs one of has and lacks"
    attempt = row.get("attempt")
    if attempt is not None and attempt not in outcomes:
        yield f"there is no attempt {attempt}"
        return
    outcome = outcomes.get(attempt) if attempt else None
    if has:
        if not attempt and not row.get("tests"):
            yield "the feature has no test"
        if outcome is not None:
            yield f"ScanKV lacks it: {outcome}"
        if "missing" in row or "words" in row:
            yield "what ScanKV has is not missing"
        yield from (f"{test} {problem}" for test in row.get("tests", ()) for problem in problems_of_test(test))
    if lacks:
        if not attempt or not row.get("refusal"):
            yield "no attempt shows that the feature is refused"
        elif outcome is None:
            yield "ScanKV has it: the attempt works"
        elif row["refusal"] not in outcome:
            yield f"the attempt is refused for another reason: {outcome}"
        if "gains" in row or "tests" in row:
            yield "what ScanKV lacks is no gain and has no tests"
        found = {name for name in names for word in row.get("words", ()) if word in name.lower()}
        if found:
            yield f"ScanKV may have it: {', '.join(sorted(found))}"


def problems_of_test(test: str) -> Iterator[str]:
    """Yields why a test, or all tests of a file, may not run in `make test`."""
    path, _, name = test.partition("::")
    file = ROOT / path
    if not (path.startswith("tests/") and file.name.startswith("test_") and file.is_file()):
        yield "is not a file with tests"
        return
    body = _parse(file)
    functions = {
        node.name: node
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    if not (functions if not name else name in functions):
        yield "does not exist"
    of_file = [node for node in body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node.targets[0])]
    of_test = functions[name].decorator_list if name in functions else []
    marks = [*map(ast.unparse, of_file), *(ast.unparse(each).partition("(")[0] for each in of_test)]
    if any(map(LEFT_OUT.search, marks)) or SKIPPING.search(file.read_text()):
        yield "may be left out"


@cache
def _parse(file: Path) -> list[ast.stmt]:
    return ast.parse(file.read_text()).body


@cache
def list_names() -> frozenset[str]:
    """Returns all names of Python, the command line, the settings, the options of tables, the wire and the extras."""
    return frozenset([*_names_of_python(), *_names_of_commands(typer.main.get_command(app)), *_names_of_files()])


def _names_of_python() -> Iterator[str]:
    for module in map(import_module, PUBLIC):
        for name in module.__all__:
            yield name
            public = getattr(module, name)
            members = vars(public) if inspect.ismodule(public) else dict(inspect.getmembers(public))
            if isinstance(public, type) or inspect.ismodule(public):
                yield from (member for member in members if not member.startswith("_"))
            for callable_ in (public, *members.values()):
                if inspect.isfunction(callable_) or isinstance(callable_, type):
                    yield from _parameters_of(callable_)


def _parameters_of(callable_: Any) -> list[str]:
    try:
        return list(inspect.signature(callable_).parameters)
    except (TypeError, ValueError):  # A type that Python does not describe.
        return []


def _names_of_commands(command: Any) -> Iterator[str]:
    for name, each in getattr(command, "commands", {}).items():
        yield name
        yield from _names_of_commands(each)
    yield from (option for parameter in command.params for option in parameter.opts)


def _names_of_files() -> Iterator[str]:
    yield from (field.name for cls in (ServerConfig, TableOptions) for field in dataclasses.fields(cls))
    yield from tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for file in (ROOT / "protos").rglob("*.proto"):
        text = re.sub(r"//.*", "", file.read_text())
        yield from re.findall(r"\b(?:message|enum|rpc|service) (\w+)", text)
        yield from re.findall(r"\b(\w+) = \d+", text)
