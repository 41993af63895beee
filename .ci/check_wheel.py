"""Checks that the wheel contains every package and nothing else, and that it works outside the checkout.

Builds the wheel and installs it into a new environment outside the checkout. After a bare install, the client and the
command line must start. With the extra `server`, all modules must import, except those that need the extras `oidc`,
`lake` and `http`: they must import with these. Those of the Spark bridge are left out: PySpark has half a gigabyte, and
the tests of the bridge import them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["packages"]
BARE_PACKAGES = ("aio_client", "scankv.model", "scankv.v1")
SPARK_PACKAGES = ("spark_bridge", "pyspark_scankv", "scankv.spark")
NEVER_SHIPPED = {"tests", "benchmarks", "examples", "docs"}
OWN_PACKAGES = ("protos", "table_model", "tests", "benchmarks", "examples", "docs", "v1", "model")
USE = """
import pathlib, tempfile
import protos, table_model, tests
import pyarrow as pa
import scankv.sync, scankv.testing

with tempfile.TemporaryDirectory() as data, scankv.testing.ServerProcess(pathlib.Path(data) / "data") as server:
    with scankv.sync.connect(server.url) as client:
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
        table = client.create_table("test.rows", schema, primary_key=["id"])
        table.upsert([{"id": 1, "name": "one"}])
        assert table.scan().to_pylist() == [{"id": 1, "name": "one"}]
"""
HTTP_PACKAGES = ("http_gateway",)
OIDC_MODULES = ("streaming_server.access.jwt_verifier", "streaming_server.access.signing_keys")
LAKE_MODULES = tuple(f"scankv.lake.iceberg.{name}" for name in ("durable_files", "int96_files", "snapshots"))
IMPORT_ALL = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"


def main() -> None:
    """Builds and checks the wheel. Exits with code 1 and the reason if a check fails."""
    with tempfile.TemporaryDirectory(prefix="scankv-wheel-") as directory:
        outside = Path(directory)
        wheel = build(outside)
        files = files_of(wheel)
        check_files(files)
        modules = modules_of(files)
        venv.create(outside / "env", symlinks=True)
        python = outside / "env" / "bin" / "python"

        install(python, str(wheel))
        bare = [name for name in modules if is_in(name, BARE_PACKAGES)]
        run(python, "-I", "-c", IMPORT_ALL, *bare, "scankv", "scankv.cli", cwd=outside)
        run(python.with_name("scankv"), "--help", cwd=outside)
        run(python.with_name("scankv"), "monitoring", "export", "monitoring", cwd=outside)
        check_monitoring(outside / "monitoring")
        print(f"bare install: {len(bare)} modules import, the command line starts, the dashboard can be exported")

        install(python, f"{wheel}[server]")
        others = {*OIDC_MODULES, *LAKE_MODULES}
        rest = [name for name in modules if not is_in(name, SPARK_PACKAGES + HTTP_PACKAGES) and name not in others]
        run(python, "-I", "-c", IMPORT_ALL, *rest, cwd=outside)
        install(python, f"{wheel}[oidc]")
        run(python, "-I", "-c", IMPORT_ALL, *OIDC_MODULES, cwd=outside)
        install(python, f"{wheel}[lake]")
        run(python, "-I", "-c", IMPORT_ALL, *LAKE_MODULES, cwd=outside)
        install(python, f"{wheel}[http]")
        http = [name for name in modules if is_in(name, HTTP_PACKAGES)]
        run(python, "-I", "-c", IMPORT_ALL, *http, cwd=outside)
        print(f"with the server: {len(rest)} modules import, {len(OIDC_MODULES)} with web tokens, {len(http)} for HTTP")

        project = make_project(outside / "project")
        run(python, "-c", USE, cwd=project)
        print(f"a project with its own packages {', '.join(OWN_PACKAGES)} can use the wheel")


def build(directory: Path) -> Path:
    """Builds the wheel of the checkout."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory, cwd=ROOT)
    (wheel,) = directory.glob("*.whl")
    return wheel


def files_of(wheel: Path) -> set[str]:
    """Returns the files that the wheel installs, without its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def check_files(files: set[str]) -> None:
    """Compares the wheel with the packages of the checkout."""
    expected = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    if files != expected:
        sys.exit(f"the wheel lacks {sorted(expected - files)} and must not have {sorted(files - expected)}")
    if NEVER_SHIPPED & {file.partition("/")[0] for file in files}:
        sys.exit(f"the wheel must not have any of {sorted(NEVER_SHIPPED)}")
    untyped = [package for package in PACKAGES if f"{package}/py.typed" not in files]
    if untyped:
        sys.exit(f"py.typed is missing in {untyped}")


def check_monitoring(directory: Path) -> None:
    """Compares exported files with those of the checkout."""
    for source in (ROOT / "scankv" / "monitoring").iterdir():
        if source.suffix in (".json", ".yml") and (directory / source.name).read_bytes() != source.read_bytes():
            sys.exit(f"`scankv monitoring export` has written another {source.name}")


def modules_of(files: set[str]) -> list[str]:
    """Returns the importable modules of the wheel, without `__main__`, which would start a program."""
    names = {
        file.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for file in files if file[-3:] == ".py"
    }
    return sorted(name for name in names if not name.endswith("__main__"))


def is_in(module: str, packages: tuple[str, ...]) -> bool:
    """Returns whether a module is one of some packages or is inside one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def make_project(path: Path) -> Path:
    """Creates a project with packages whose names the wheel must not occupy."""
    for name in OWN_PACKAGES:
        (path / name).mkdir(parents=True)
        (path / name / "__init__.py").touch()
    return path


def install(python: Path, requirement: str) -> None:
    """Installs into the environment of `python`, with the pip of this environment."""
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", requirement)


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Runs a command without the checkout on its path. If the command fails, exits with its output."""
    words = [str(word) for word in command]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    completed = subprocess.run(
        words,
        cwd=cwd,
        env=environment,
        check=False,
        timeout=300,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if completed.returncode:
        sys.exit(f"{completed.stdout}\nfailed: {' '.join(words[:6])} ...")


if __name__ == "__main__":
    main()
