"""Each public member of the asynchronous client has a blocking counterpart, and the generated code is up to date."""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import aio_client
from aio_client import sync

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[3]
GENERATOR = ROOT / ".ci" / "generate_sync.py"
CLASSES = [name for name in sync.__all__ if name != "connect"]
TWIN_OF = {"aclose": "close", "__aenter__": "__enter__", "__anext__": "__next__"}

# Members that only the blocking client has.
BLOCKING_ONLY = {"Client": {"read_ahead"}, "Scan": {"batches"}, "ScanStream": {"poll"}, "TopNWatch": {"latest"}}

# The result types of asynchronous functions, and their blocking counterparts.
RETURNS = {
    "SnapshotOpener": "Snapshot",
    "SnapshotGroupOpener": "SnapshotGroup",
    "ColumnLockOpener": "ColumnLock",
    "TransactionOpener": "Transaction",
    "ClientOpener": "Client",
    "BlockingStream": "ScanStream",
}

# Members with a shorter docstring in the blocking client: there, `stream_sync` is only another name of `stream`.
OWN_DOCSTRING = {"Scan.stream_sync"}


def public_members(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


MEMBERS = [(cls, name) for cls in CLASSES for name in sorted(public_members(getattr(aio_client, cls)))]
FUNCTIONS = [*MEMBERS, ("Writer", "__aenter__"), ("ScanStream", "__aenter__"), ("ScanStream", "__anext__")]
ids = [f"{cls}.{name}" for cls, name in FUNCTIONS]


def pair(cls: str, name: str) -> tuple[Any, Any]:
    """Returns a member of an asynchronous class, and its blocking counterpart."""
    found = inspect.getattr_static(getattr(aio_client, cls), name)
    return found, inspect.getattr_static(getattr(sync, cls), TWIN_OF.get(name, name))


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_sync", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate_sync"] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


def test_the_committed_module_is_what_the_generator_writes(tmp_path: Path) -> None:
    made = tmp_path / "made.py"
    subprocess.run([sys.executable, GENERATOR, made], check=True, timeout=120)
    assert made.read_bytes() == (ROOT / "aio_client" / "_sync" / "generated.py").read_bytes(), "run `make sync`"


def test_a_docstring_without_blocking_wording_is_refused(generator: ModuleType) -> None:
    node = generator.ast.parse('def f():\n    """Waits in the event loop."""').body[0]
    with pytest.raises(SystemExit, match='"event loop" in the docstring has no blocking form'):
        generator.adapt_docstring("Table.f", node)


def test_a_difference_that_matches_nothing_any_more_is_refused(
    generator: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(generator.REWORDED, "Table.gone", [("a", "b")])
    with pytest.raises(SystemExit, match=r"functions or classes that do not exist: Table\.gone"):
        generator.module_text()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("async with a() as b:", "with a() as b:"),
        ("print(await scan.explain())", "print(scan.explain())"),
        ("at = (await table.log_offsets()).to_json()", "at = table.log_offsets().to_json()"),
        ("async for rows in scankv.Table.scan()", "for rows in scankv.sync.Table.scan()"),
        ("StopAsyncIteration: one task", "StopIteration: one thread"),
    ],
)
def test_asynchronous_wording_becomes_that_of_blocking_code(generator: ModuleType, text: str, expected: str) -> None:
    assert generator.adapt_text("Table.f", text) == expected


@pytest.mark.parametrize(("cls", "name"), FUNCTIONS, ids=ids)
def test_each_member_has_a_twin_with_equal_parameters(cls: str, name: str) -> None:
    asynchronous, blocking = pair(cls, name)
    assert isinstance(blocking, property) == isinstance(asynchronous, property)
    if isinstance(asynchronous, property):
        asynchronous, blocking = asynchronous.fget, blocking.fget
    expected, found = inspect.signature(asynchronous), inspect.signature(blocking)
    assert list(found.parameters.values()) == list(expected.parameters.values())
    returns = re.sub(r"\w+", lambda word: RETURNS.get(word[0], word[0]), str(expected.return_annotation))
    assert found.return_annotation == returns
    assert not inspect.iscoroutinefunction(blocking)


@pytest.mark.parametrize(("cls", "name"), FUNCTIONS, ids=ids)
def test_each_twin_has_a_docstring_as_complete(generator: ModuleType, cls: str, name: str) -> None:
    asynchronous, blocking = pair(cls, name)
    expected, found = inspect.getdoc(asynchronous), inspect.getdoc(blocking)
    assert expected
    assert found
    assert not generator.ASYNCHRONOUS.search(found)
    if f"{cls}.{name}" not in OWN_DOCSTRING:
        assert entries(found) == {TWIN_OF.get(each, each) for each in entries(expected)}
        assert len(found) > 0.7 * len(expected)
    assert "See `aio_client" not in found


@pytest.mark.parametrize("cls", ["ScanStream", "TopNWatch"])
def test_the_docstrings_of_classes_written_by_hand_follow_the_same_rules(generator: ModuleType, cls: str) -> None:
    for member in generator.members_of(getattr(aio_client, cls)):
        _, blocking = pair(cls, member.node.name)
        assert inspect.getdoc(blocking) == generator.adapt_docstring(member.name, member.node)


def test_each_class_has_a_docstring_of_blocking_code(generator: ModuleType) -> None:
    for name in CLASSES:
        found = inspect.getdoc(getattr(sync, name))
        assert found
        assert not generator.ASYNCHRONOUS.search(found), name
        assert "thread" in found.lower() or name in {"Writer", "Transaction"}, name


def test_connect_is_the_same() -> None:
    expected, found = inspect.signature(aio_client.connect), inspect.signature(sync.connect)
    assert found.replace(return_annotation="") == expected.replace(return_annotation="")
    assert entries(inspect.getdoc(sync.connect)) == entries(inspect.getdoc(aio_client.connect))


def test_the_blocking_classes_have_nothing_that_is_not_declared() -> None:
    for name in CLASSES:
        expected = {TWIN_OF.get(each, each) for each in public_members(getattr(aio_client, name))}
        found = public_members(getattr(sync, name))
        assert found - expected == BLOCKING_ONLY.get(name, set()), name


def test_the_asynchronous_client_is_imported_without_the_blocking_one() -> None:
    code = "import aio_client, aio_client.mirror, sys; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120).stdout
    blocking = {"aio_client.sync", "aio_client._sync.runner", "aio_client._sync.read_ahead"}
    assert not [name for name in found.split() if name in blocking or name.startswith("aio_client._sync_")]


def entries(docstring: str | None) -> set[str]:
    """Returns the sections, arguments and errors that a docstring names."""
    assert docstring
    sections = re.findall(r"^([A-Z]\w+):$", docstring, re.MULTILINE)
    listed = re.findall(r"^    (\*{0,2}[\w.]+(?:, [\w.]+)*):(?: |$)", docstring, re.MULTILINE)
    return {*sections, *(each.replace("StopAsyncIteration", "StopIteration") for each in listed)}
