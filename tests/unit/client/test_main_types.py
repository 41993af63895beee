"""Type checkers see the types of what the main calls return, in a program that uses the installed package."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

CALLS: Final = Path(__file__).with_name("main_calls.py")
# Optional packages, whose types are in no result.
SKIPPED: Final = (
    "altair", "deltalake", "fsspec", "google", "grpc", "hypothesis", "IPython", "matplotlib", "narwhals", "PIL",
    "pydantic", "pyiceberg", "pyspark", "rich", "scankv.v1", "sqlalchemy", "typer",
)  # fmt: skip
NAME: Final = re.compile(r"(?:\w+\.)+(\w+)")


def expected_types() -> Iterator[tuple[int, str]]:
    """The number of each line that reveals a type, and the type in its comment."""
    for number, line in enumerate(CALLS.read_text().splitlines(), 1):
        if "reveal_type(" in line:
            yield number, line.rpartition("  # ")[2]


def run(tool: str, *arguments: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    completed = subprocess.run(
        [sys.executable, "-m", tool, *arguments],
        cwd=folder,
        env=os.environ | {"PATH": path},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return completed.stdout or pytest.fail(completed.stderr)


def public_name(found: re.Match[str]) -> str:
    """A class as its public module names it, since mypy names the module that defines it."""
    module = re.sub(r"^aio_client(\._sync)?\b.*", lambda own: "scankv.sync" if own[1] else "scankv", found[0])
    return f"{module if module.startswith('scankv.sync') else module.partition('.')[0]}.{found[1]}"


def types_of_mypy(folder: Path) -> Iterator[tuple[int, str]]:
    skipped = ",".join(f"{name}.*" for name in SKIPPED)
    (folder / "mypy.ini").write_text(
        f"[mypy]\nstrict = True\ncache_dir = /dev/null\n[mypy-{skipped}]\nfollow_imports = skip\n"
        "follow_imports_for_stubs = True\n"
    )
    for line in run("mypy", CALLS.name, folder=folder).splitlines():
        assert "error:" not in line
        if found := re.fullmatch(rf'{CALLS.name}:(\d+): note: Revealed type is "(.*)"', line):
            yield int(found[1]), NAME.sub(public_name, found[2])


def types_of_pyright(folder: Path) -> Iterator[tuple[int, str]]:
    for found in json.loads(run("pyright", "--outputjson", CALLS.name, folder=folder))["generalDiagnostics"]:
        assert found["severity"] == "information", found["message"]
        (type_,) = re.findall(r'Type of ".*" is "(.*)"', found["message"])
        yield found["range"]["start"]["line"] + 1, type_


@pytest.mark.timeout(180)
def test_mypy_and_pyright_see_the_types_of_what_the_main_calls_return(tmp_path: Path) -> None:
    (tmp_path / CALLS.name).write_bytes(CALLS.read_bytes())
    expected = dict(expected_types())
    assert len(expected) > 45
    assert dict(types_of_mypy(tmp_path)) == expected
    assert dict(types_of_pyright(tmp_path)) == {line: NAME.sub(r"\1", type_) for line, type_ in expected.items()}
