"""Generates the classes of the blocking client, `aio_client/_sync/generated.py`, from the asynchronous client.

Each public method and property of an asynchronous class gets a blocking twin with the same parameters, defaults and
docstring. The twin of a coroutine function runs the coroutine in the client's event loop, and wraps the result in the
blocking class of the same name.

The tables below contain all differences between the two clients that do not follow from these rules. It is an error if
a table entry no longer matches the asynchronous source, or if a docstring still mentions asynchronous code.

Usage: python .ci/generate_sync.py [FILE]
"""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
import textwrap
from abc import ABC
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import aio_client  # noqa: E402
from aio_client._input.awaitable import AwaitableOpener  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = ROOT / "aio_client" / "_sync" / "generated.py"
WIDTH = 120
METHOD_WIDTH = WIDTH - 8

GENERATED = (
    "Client",
    "Table",
    "Scan",
    "SqlQuery",
    "Snapshot",
    "SnapshotGroup",
    "ColumnLock",
    "Writer",
    "TransactionPart",
    "Transaction",
)
"""The classes to generate, bases before the classes that derive from them."""

BY_HAND = {"ScanStream": "aio_client._sync.stream", "TopNWatch": "aio_client._sync.watch"}
"""Classes with their own logic, which are written by hand, and their modules."""

SHARED = ("ScanBuilder", "ChangesBuilder")
"""Base classes of both clients. Their methods are overridden only if the docstring differs."""

BASES = {
    "Client": ("BlockingClient",),
    "Scan": ("BlockingScan",),
    "Snapshot": ("BlockingLease",),
    "SnapshotGroup": ("BlockingLease",),
    "ColumnLock": ("BlockingLease",),
    "Writer": ("BlockingContextManager",),
    "Transaction": ("TransactionPart", "BlockingContextManager"),
}
"""The bases of the blocking classes, from `aio_client._sync.base`, if they are not only `Blocking`."""

WRAPPED_BY = {"Scan": "Scan._of"}
"""The function that wraps an asynchronous object, if it is not the blocking class itself."""

BODIES = {
    "connect": "return Client(aio_client.connect({arguments})._config)",
    "Scan.stream_sync": "return self.stream()",
    "Scan.to_polars": "return to_polars(self, lazy=lazy)",
    "Scan.to_duckdb": "return to_duckdb(self, con, name)",
    "Table.dataset": "return dataset(self, as_of)",
}
"""The bodies of functions whose blocking form does not just call the asynchronous form."""

DOCSTRINGS = {
    "Scan": """A scan of one table that has not started. Immutable, thread-safe.

Iterating starts it, each time with a new view: `for rows in scan`. DuckDB, Polars, pyarrow and others read all rows
directly (`duckdb.sql("select * from scan")`, `polars.DataFrame(scan)`), through `__arrow_c_stream__`.

Made by `table.scan()`, `table.changes()` or `client.scan(spec)`. Not picklable: send `spec`.""",
    "Scan.stream_sync": "The same as `stream`.",
}
"""Docstrings of the blocking client that differ completely from the asynchronous ones."""

REWORDED = {
    "connect": [
        ("in `async with` or by `await`", "to be used as it is or in `with`"),
        ("An object for `async with` or `await`, which opens a `Client`.", "The `Client`."),
        ("It runs in a thread unless it is a coroutine function.", "It runs in another thread."),
    ],
    "Client.transaction": [
        ("An object for `async with` or `await`, which begins a `Transaction` each time.", "The `Transaction`."),
    ],
    "Client": [
        (
            "Belongs to the event loop it was opened in, where many tasks may use it at once; not to be used in a "
            "forked process.",
            "Thread-safe. Connect after a fork, not before it.",
        )
    ],
    "Table": [("Belongs to the event loop of its client; many tasks may use it at once.", "Thread-safe.")],
    "Table.dataset": [
        ("await asyncio.to_thread(query.to_arrow_table)", "query.to_arrow_table()"),
        (" A query blocks, over connections of its own.", ""),
    ],
    "Table.snapshot": [
        ("An object for `async with` or `await`, which takes a `Snapshot` each time.", "The `Snapshot`.")
    ],
    "Client.snapshot": [
        ("An object for `async with` or `await`, which takes a `SnapshotGroup` each time.", "The `SnapshotGroup`.")
    ],
    "Table.lock_columns": [
        ("An object for `async with` or `await`, which takes a `ColumnLock` each time.", "The `ColumnLock`."),
    ],
    "Table.watch_top_n": [("See `TopNWatch` for", "The client asks in the background. See `TopNWatch` for")],
    "Client.alter_table": [("at least once.", "at least once. Called in the client's thread; must not block.")],
    "Client.check_table": [
        ("as soon as it is done.", "as soon as it is done, in the client's thread; must not block."),
    ],
    "Scan.to_polars": [
        (
            "`collect` blocks, over a connection of its own: in a coroutine use `await "
            "asyncio.to_thread(frame.collect)`.",
            "`collect` uses this client's connection.",
        )
    ],
    "Scan.to_duckdb": [
        ("the blocking `Scan` can be queried by DuckDB directly", "the scan itself can be queried by DuckDB"),
        (
            " DuckDB works in a thread. When the call is cancelled, it ends once DuckDB has released the connection.",
            "",
        ),
    ],
    "ScanStream.__anext__": [
        (
            "Another task is reading this stream, or it was closed.",
            "Another thread is reading this stream, or it was closed. Or an interrupt such as Ctrl-C has ended it: "
            "the error's `resume_token` continues after the rows before.",
        )
    ],
    "ScanStream.ended": [
        ("over: all rows were returned, it failed, or it was closed.", "over, and its last rows were returned."),
    ],
    "ScanStream.on_heartbeat": [
        ("Calls a listener", "Calls a listener in the client's thread"),
    ],
    "TopNWatch.__anext__": [("Another task is reading this watch, or the client", "The client")],
    "TopNWatch.unchanged": [("that were returned last", "of the answer before")],
}
"""By function or class: phrases to replace before the rules below are applied."""

OWN = (
    "Blocking",
    "BlockingClient",
    "BlockingScan",
    "BlockingContextManager",
    "BlockingLease",
    "dataset",
    "to_duckdb",
    "to_polars",
    "unwrap",
)
"""The names that the generated module imports from `aio_client._sync.base`."""

RULES = [
    (r"(?<!\w)\(await ([\w.]+\([^()]*\))\)", r"\1"),
    (r"\basync (with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\bBelongs to the event loop of its client\b", "Thread-safe"),
    (r"\btask(s?)\b", r"thread\1"),
    (rf"\b(?:aio_client|scankv)\.({'|'.join((*GENERATED, *BY_HAND, 'connect'))})\b", r"scankv.sync.\1"),
]
"""Replacements of asynchronous wording, applied to every docstring."""

ASYNCHRONOUS = re.compile(r"\b(await|async\w*|aclose|coroutines?|event loops?|tasks?|aio_client)\b", re.IGNORECASE)
"""Words that no docstring of the blocking client may contain."""

HEADER = '''
"""The classes of `scankv.sync` that run those of the asynchronous client."""

# Generated by .ci/generate_sync.py from the asynchronous classes of aio_client. Do not edit: run `make sync`.

from __future__ import annotations
'''

SPECIAL = {"__aenter__": "__enter__", "__anext__": "__next__"}
"""Special methods of asynchronous objects and their blocking twins."""

Function = ast.FunctionDef | ast.AsyncFunctionDef

TWINS = (*GENERATED, *BY_HAND)
OPENED = {each.__name__: each.result.__name__ for each in AwaitableOpener.__subclasses__()}
"""The class that `await` returns for each class of awaitable openers."""

RESULTS = OPENED | {"BlockingStream": "ScanStream"}
"""The results of asynchronous functions for which the blocking functions return another class."""


@dataclass
class Imports:
    """The imports of the generated module."""

    always: set[str] = field(default_factory=set)
    for_types: set[str] = field(default_factory=set)

    def add(self, node: ast.AST, module: str, *, at_runtime: bool) -> None:
        """Adds the imports for the names in a part of a signature. `module` is where the signature is defined."""
        for name in names_in(node) - set(dir(builtins)) - set(GENERATED):
            statement = f"from {BY_HAND[name]} import {name}" if name in BY_HAND else import_of(name, module)
            (self.always if at_runtime or name in BY_HAND else self.for_types).add(statement)


@dataclass(frozen=True)
class Member:
    """A public function, method or property.

    Attributes:
        name: Its qualified name.
        node: Its definition.
        overloads: The overloads before it.
        module: The module that defines it.
        shared: Whether the blocking class inherits it.
    """

    name: str
    node: Function
    overloads: tuple[Function, ...]
    module: str
    shared: bool = False


def main() -> None:
    """Writes the module to the given file, by default to the committed one."""
    Path(sys.argv[1] if len(sys.argv) > 1 else FILE).write_text(module_text())


def module_text() -> str:
    """Returns the source of the generated module, formatted."""
    imports = Imports({"import aio_client", f"from aio_client._sync.base import {', '.join(OWN)}"})
    classes = [class_text(name, imports) for name in GENERATED]
    opening = function_text(connect_member(), imports)
    for name in BY_HAND:  # a test compares these docstrings
        for member in members_of(getattr(aio_client, name)):
            adapt_docstring(member.name, member.node)
    unused = {key for table in (BODIES, DOCSTRINGS, REWORDED) for key in table} - USED
    if unused:
        raise SystemExit(
            f"remove the table entries of functions or classes that do not exist: {', '.join(sorted(unused))}"
        )
    types = "\n".join(f"    {statement}" for statement in sorted(imports.for_types - imports.always))
    runtime = "\n".join(sorted(imports.always))
    text = f"{HEADER}\nfrom typing import TYPE_CHECKING\n{runtime}\nif TYPE_CHECKING:\n{types}\n"
    text += "\n\n".join([*classes, opening])
    text = ruff("check", "--quiet", "--fix", "--select", "I", source=text)
    return ruff("format", "--quiet", source=text)


def ruff(*arguments: str, source: str) -> str:
    """Runs ruff on some source, and returns the changed source."""
    command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(FILE), "-"]
    return subprocess.run(command, input=source, cwd=ROOT, check=True, capture_output=True, text=True).stdout


# ---- Reading the asynchronous client ----


@cache
def tree_of(module: str) -> ast.Module:
    """Returns the parsed source of a module."""
    path = sys.modules[module].__file__
    assert path is not None
    return ast.parse(Path(path).read_text())


@cache
def module_of(name: str) -> str:
    """Returns the module that defines a class or function; `__module__` is the public module, not the defining one."""
    modules = sorted(module for module in sys.modules if module.partition(".")[0] == "aio_client")
    asynchronous = (module for module in modules if not module.startswith(("aio_client.sync", "aio_client._sync")))
    return next(module for module in asynchronous if definition_in(module, name) is not None)


def definition_in(module: str, name: str) -> ast.ClassDef | ast.FunctionDef | None:
    """Returns the definition of a class or function at the top level of a module, or None."""
    nodes = (node for node in tree_of(module).body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    return next((node for node in nodes if node.name == name), None)


def members_of(cls: type) -> Iterator[Member]:
    """Yields the public members of a class, including inherited ones, except those from other generated classes."""
    seen: set[str] = set()
    for owner in cls.__mro__:
        if owner in (object, ABC) or (owner is not cls and owner.__name__ in GENERATED):
            break
        functions: dict[str, list[Function]] = {}
        for node in class_node(owner).body:
            if isinstance(node, Function) and is_public(node):
                functions.setdefault(node.name, []).append(node)
        for name, nodes in functions.items():
            if name not in seen:
                seen.add(name)
                *overloads, node = nodes
                shared = owner.__name__ in SHARED
                yield Member(f"{cls.__name__}.{name}", node, tuple(overloads), module_of(owner.__name__), shared)


def class_node(cls: type) -> ast.ClassDef:
    """Returns the definition of a class."""
    node = definition_in(module_of(cls.__name__), cls.__name__)
    assert isinstance(node, ast.ClassDef)
    return node


def connect_member() -> Member:
    """Returns `connect`, the function that opens a client."""
    module = module_of("connect")
    node = definition_in(module, "connect")
    assert isinstance(node, ast.FunctionDef)
    return Member("connect", node, (), module)


def is_public(node: Function) -> bool:
    """Returns whether a member has a twin. Asynchronous special methods have one if they have a docstring."""
    if node.name in SPECIAL:
        return ast.get_docstring(node) is not None
    return not node.name.startswith("_") and node.name != "aclose"


def names_in(node: ast.AST) -> set[str]:
    """Returns the names that a part of a signature uses."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


@cache
def import_of(name: str, module: str) -> str:
    """Returns the statement that imports the object to which a name refers in a module."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    as_ = f" as {alias.asname}" if alias.asname else ""
                    from_ = f"from {node.module} " if isinstance(node, ast.ImportFrom) else ""
                    return f"{from_}import {alias.name}{as_}"
    return f"from {module} import {name}"


# ---- Writing the blocking twins ----


def class_text(name: str, imports: Imports) -> str:
    """Returns the source of a blocking class."""
    cls: type = getattr(aio_client, name)
    bases = ", ".join(BASES.get(name, ("Blocking",)))
    lines = [f"class {name}({bases}):", docstring(name, class_node(cls), WIDTH - 4)]
    if name != "Scan":
        lines += ["", f"    _aio: aio_client.{name}"]
    for member in members_of(cls):
        if not member.shared or adapt_docstring(member.name, member.node) != ast.get_docstring(member.node):
            lines += ["", textwrap.indent(function_text(member, imports), "    ")]
    return "\n".join(lines)


def function_text(member: Member, imports: Imports) -> str:
    """Returns the source of the blocking form of a function, method or property."""
    node = member.node
    lines = []
    for overload in member.overloads:
        lines += decorators(overload, imports, member.module)
        lines += [signature(overload, imports, member.module) + " ..."]
    lines += decorators(node, imports, member.module)
    width = METHOD_WIDTH if "." in member.name else WIDTH - 4
    lines += [signature(node, imports, member.module), docstring(member.name, node, width), f"    {body(member)}"]
    return "\n".join(lines)


def decorators(node: Function, imports: Imports, module: str) -> list[str]:
    """Returns the lines of the decorators."""
    for each in node.decorator_list:
        imports.add(each, module, at_runtime=True)
    return [f"@{ast.unparse(each)}" for each in node.decorator_list]


def signature(node: Function, imports: Imports, module: str) -> str:
    """Returns the `def` line of the blocking form."""
    assert node.returns is not None
    returns = blocking_type(node.returns)
    arguments = node.args
    for argument in [*arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
        if argument is not None and argument.annotation is not None:
            imports.add(argument.annotation, module, at_runtime=False)
    for default in [*arguments.defaults, *arguments.kw_defaults]:
        if default is not None:
            imports.add(default, module, at_runtime=True)
    imports.add(returns, module, at_runtime=False)
    return f"def {SPECIAL.get(node.name, node.name)}({ast.unparse(arguments)}) -> {ast.unparse(returns)}:"


def blocking_type(annotation: ast.expr) -> ast.expr:
    """Returns the return type of the blocking form."""
    if isinstance(annotation, ast.Name):
        return ast.Name(RESULTS.get(annotation.id, annotation.id))
    return annotation


def body(member: Member) -> str:
    """Returns the body of the blocking form."""
    node = member.node
    if member.name in BODIES:
        USED.add(member.name)
        return BODIES[member.name].format(arguments=call_arguments(node))
    if member.shared:
        return f"return super().{node.name}({call_arguments(node)})"
    if node.name in SPECIAL:
        return f"return super().{SPECIAL[node.name]}()"
    what = f"self._aio.{node.name}"
    if "property" in [ast.unparse(each) for each in node.decorator_list]:
        return f"return {what}"
    assert node.returns is not None
    is_awaited = isinstance(node, ast.AsyncFunctionDef) or not names_in(node.returns).isdisjoint(OPENED)
    arguments = call_arguments(node)
    if not is_awaited:
        what = f"{what}({arguments})"
    else:
        what = f"self._runner.call({f'lambda: {what}({arguments})' if arguments else what})"
    return wrap_result(what, blocking_type(node.returns), member.name)


def wrap_result(what: str, returns: ast.expr, name: str) -> str:
    """Returns the statement that evaluates an expression and returns its result in the blocking form."""
    match returns:
        case ast.Constant(value=None):
            return what
        case ast.Name(id=cls) if cls in TWINS:
            return f"return {WRAPPED_BY.get(cls, cls)}(self._runner, {what})"
        case ast.Subscript(value=ast.Name(id="list"), slice=ast.Name(id=cls)) if cls in TWINS:
            return f"return [{WRAPPED_BY.get(cls, cls)}(self._runner, each) for each in {what}]"
        case _ if names_in(returns).isdisjoint((*TWINS, "Self")):
            return f"return {what}"
    raise SystemExit(f"{name}: no rule for a result of type {ast.unparse(returns)}; add one to `wrap_result`")


def call_arguments(node: Function) -> str:
    """Returns the arguments of a call that passes on all parameters."""
    arguments = node.args
    given = [call_argument(each) for each in arguments.args if each.arg != "self"]
    if arguments.vararg is not None:
        given.append(f"*{call_argument(arguments.vararg)}")
    given += [f"{each.arg}={call_argument(each)}" for each in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        given.append(f"**{arguments.kwarg.arg}")
    return ", ".join(given)


def call_argument(argument: ast.arg) -> str:
    """Returns one argument of a call. Replaces a blocking object by the asynchronous one that it wraps."""
    assert argument.annotation is not None
    if names_in(argument.annotation).isdisjoint(TWINS):
        return argument.arg
    return f"unwrap({argument.arg})"


# ---- Docstrings ----

USED: set[str] = set()


def docstring(name: str, node: Function | ast.ClassDef, width: int) -> str:
    """Returns the docstring of the blocking form as the first lines of a body."""
    text = adapt_docstring(name, node, width)
    end = "\n" if "\n" in text else ""
    return textwrap.indent(f'"""{text}{end}"""', "    ")


@cache
def adapt_docstring(name: str, node: Function | ast.ClassDef, width: int = METHOD_WIDTH) -> str:
    """Returns the docstring of the blocking form of a function or class."""
    text = ast.get_docstring(node)
    if text is None:
        raise SystemExit(f"{name} has no docstring")
    if name in DOCSTRINGS:
        USED.add(name)
        return DOCSTRINGS[name]
    blocks = [adapt_block(name, block, width) for block in text.split("\n\n")]
    found = "\n\n".join(blocks)
    missed = [old for old, _ in REWORDED.get(name, ()) if old not in " ".join(text.split())]
    if missed:
        raise SystemExit(f"{name}: the docstring no longer contains {missed}; correct REWORDED")
    if name in REWORDED:
        USED.add(name)
    if left := ASYNCHRONOUS.search(found):
        raise SystemExit(f'{name}: "{left[0]}" in the docstring has no blocking form; add one to REWORDED:\n{found}')
    return found


def adapt_block(name: str, block: str, width: int) -> str:
    """Adapts a paragraph, a section or an example."""
    lines = block.split("\n")
    if lines[0].startswith("    "):
        return "\n".join(adapt_text(name, line) for line in lines)
    if not re.fullmatch(r"[A-Z]\w+:", lines[0]):
        return refill(name, lines, width)
    entries: list[list[str]] = []
    for line in lines[1:]:
        if line.startswith("        "):
            entries[-1].append(line)
        else:
            entries.append([line])
    return "\n".join([lines[0], *(refill(name, entry, width) for entry in entries)])


def refill(name: str, lines: list[str], width: int) -> str:
    """Adapts lines that form one paragraph, and wraps them again if the rules change them."""
    text = " ".join(line.strip() for line in lines)
    changed = adapt_text(name, text)
    if changed == text:
        return "\n".join(lines)
    first, rest = (re.match(" *", lines[index])[0] for index in (0, min(1, len(lines) - 1)))  # type: ignore[index]
    if len(lines) == 1 and first:
        rest = f"{first}    "
    return textwrap.fill(
        changed, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def adapt_text(name: str, text: str) -> str:
    """Adapts the wording of some text of a docstring."""
    for old, new in REWORDED.get(name, ()):
        text = text.replace(old, new)
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    return text


if __name__ == "__main__":
    main()
