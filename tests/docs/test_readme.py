"""What README.md tells a newcomer to type works, and prints what README.md says."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


REPL = "python -m asyncio\n"
PRINTED = re.compile(r"^ *print\(.*\)  # (.+)$", re.MULTILINE)
END = "end of a block"


@pytest.mark.timeout(180)  # types the whole README
def test_everything_can_be_typed_from_top_to_bottom_and_prints_what_is_shown(tmp_path: Path) -> None:
    """Shell and Python as a reader has them: one of each, from the tour to the end of the session."""
    port = _free_port()
    environment = os.environ | {
        "PATH": f"{_programs(tmp_path)}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "PYTHON_BASIC_REPL": "1",
        "SCANKV_PORT": str(port),
        "SCANKV_URL": f"127.0.0.1:{port}",
    }
    with (
        _session(["bash", "-e"], tmp_path, environment) as shell,
        _session([sys.executable, "-W", "ignore", "-m", "asyncio"], tmp_path, environment) as python,
    ):
        output, python_is_open = "", False
        for section, language, text in _story():
            if text == REPL:
                python_is_open = True
            elif language == "bash":
                output = _type(shell, text, f"echo {END!r}")
            elif language == "python":
                assert python_is_open, section
                # Behind an empty line, which ends a loop; what is printed comes behind prompts.
                output = _type(python, text, f"\nprint({END!r})")
                assert "Traceback" not in output, output
                printed = re.sub(r"^(?:(?:>>>|\.\.\.) )+", "", output, flags=re.MULTILINE).splitlines()
                assert [line for line in PRINTED.findall(text) if line not in printed] == [], output
            elif language == "text":
                assert output.splitlines()[-len(text.splitlines()) :] == text.splitlines(), output


def test_the_story_is_about_one_table() -> None:
    blocks = _story()
    assert {language for _, language, _ in blocks} == {"bash", "python", "text"}
    assert [text for _, _, text in blocks].count(REPL) == 1
    opened = [name for _, _, text in blocks for name in re.findall(r'client\.table\("(.+?)"\)', text)]
    assert opened == ["game.scores"]


def _story() -> list[tuple[str, str, str]]:
    """The blocks of the session in their order, each with its section and language."""
    text = (ROOT / "README.md").read_text()
    sections = re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    names = [name for name, _ in sections]
    story = sections[names.index("A one-minute tour") : names.index("Stop") + 1]
    # Spark's own shell; see tests/spark/test_readme.py.
    told = [(name, content) for name, content in story if name != "From Spark"]
    return [(name, language, code) for name, content in told for language, code in BLOCK.findall(content)]


@contextlib.contextmanager
def _session(command: list[str], directory: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        cwd=directory,
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _type(process: subprocess.Popen[str], text: str, at_the_end: str) -> str:
    """Types a block, and gives what is printed until it has run; fails where the session ends before."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{text}{at_the_end}\n")
    process.stdin.flush()
    lines: list[str] = []
    for line in process.stdout:
        if line.strip().endswith(END):
            return "".join(lines)
        lines.append(line)
    raise AssertionError(f"the session has ended in\n{text}\nand said\n{''.join(lines)}")


def test_every_make_target_named_exists() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page in ("README.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"(?:^|`)make ([a-z]+)", (ROOT / page).read_text(), re.MULTILINE))
        assert sorted(named - set(targets)) == [], page


def _programs(directory: Path) -> Path:
    """A folder with `python` and `scankv`, both of this interpreter, installed or not."""
    programs = directory / "bin"
    programs.mkdir()
    for name, arguments in {"python": "", "scankv": "-m scankv "}.items():
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
        program.chmod(0o755)
    return programs


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
