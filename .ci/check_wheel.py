"""Does the wheel hold every package and nothing else, and does it work where no checkout is near?

Builds the wheel and installs it into a fresh environment outside the checkout. After a bare install the client and the
command line must start; with the extra `server` every module of every other package must import. The modules of the
Spark bridge are only looked for: PySpark is half a gigabyte, and their tests import them.
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
IMPORT_ALL = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"


def main() -> None:
    """Builds and checks; exits non-zero with the reason when something is wrong."""
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
        print(f"bare install: {len(bare)} modules import, the command line starts")

        install(python, f"{wheel}[server]")
        rest = [name for name in modules if not is_in(name, SPARK_PACKAGES)]
        run(python, "-I", "-c", IMPORT_ALL, *rest, cwd=outside)
        print(f"with the server: {len(rest)} modules import")

        project = make_project(outside / "project")
        run(python, "-c", USE, cwd=project)
        print(f"a project with packages {', '.join(OWN_PACKAGES)} of its own can use it")


def build(directory: Path) -> Path:
    """Builds the wheel of the checkout."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory, cwd=ROOT)
    (wheel,) = directory.glob("*.whl")
    return wheel


def files_of(wheel: Path) -> set[str]:
    """The files that the wheel installs, without its own description."""
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


def modules_of(files: set[str]) -> list[str]:
    """The names under which the wheel's files are imported; a `__main__` would start the program."""
    names = {
        file.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for file in files if file[-3:] == ".py"
    }
    return sorted(name for name in names if not name.endswith("__main__"))


def is_in(module: str, packages: tuple[str, ...]) -> bool:
    """Whether a module is one of some packages, or below one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def make_project(path: Path) -> Path:
    """A directory with packages whose names a careless distribution would take."""
    for name in OWN_PACKAGES:
        (path / name).mkdir(parents=True)
        (path / name / "__init__.py").touch()
    return path


def install(python: Path, requirement: str) -> None:
    """Installs into the environment of `python`, with the pip of this one."""
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", requirement)


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Runs a command quietly and without the checkout on its path; a failure ends the check."""
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
