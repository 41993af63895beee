"""The committed modules of scankv/v1 match the .proto files."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from scankv import v1

ROOT = Path(__file__).parents[2]
PROTOS = ROOT / "protos"
KINDS = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("generated")
    # The generator's plugin is a program next to this interpreter.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run([ROOT / ".ci/generate-protos", out], env=os.environ | {"PATH": path}, check=True, timeout=60)
    return out


def test_every_generated_module_equals_the_committed_one(generated: Path) -> None:
    made = _modules(generated)
    committed = _modules(ROOT)
    assert sorted(committed) == sorted(made), "run `make protos`"
    assert [name for name in made if made[name] != committed[name]] == [], "run `make protos`"


def test_every_proto_file_generates_all_kinds_of_module(generated: Path) -> None:
    protos = [path.relative_to(PROTOS).with_suffix("") for path in PROTOS.rglob("*.proto")]
    assert sorted(_modules(generated)) == sorted(f"{proto}{kind}" for proto in protos for kind in KINDS)


def test_every_file_has_the_packages_of_other_languages() -> None:
    packages = {
        "csharp_namespace": "ScanKv.V1",
        "go_package": "scankv/v1;scankvv1",
        "java_multiple_files": True,
        "java_package": "scankv.v1",
    }
    files = [importlib.import_module(f"scankv.v1.{module.name}") for module in pkgutil.iter_modules(v1.__path__)]
    options = {
        module.DESCRIPTOR.name: {option.name: value for option, value in module.DESCRIPTOR.GetOptions().ListFields()}
        for module in files
        if module.__name__.endswith("_pb2")
    }
    assert {name for name, given in options.items() if given != packages} == set()
    assert len(options) == len(list(PROTOS.rglob("*.proto")))


def _modules(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in (root / "scankv").rglob("*_pb2*")
        if path.suffix in {".py", ".pyi"}
    }
