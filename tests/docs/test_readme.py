"""What README.md tells a newcomer to type works, and prints what README.md says."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aio_client import Resume, connect, sync
from tests.spark import java

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_one_minute_tour_runs_and_prints_what_it_shows(tmp_path: Path) -> None:
    blocks = _blocks("A one-minute tour")
    assert {"bash", "python", "text"} == {language for language, _ in blocks}
    output = _run(_script(blocks), tmp_path)
    shown = [line for language, text in blocks if language == "text" for line in text.splitlines()]
    printed = output.splitlines()
    assert [line for line in shown if line not in printed] == [], output


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "section",
    [
        "Ask for less",
        "Follow the changes",
        "Let the table add up",
        "All or nothing",
        "Write from several jobs",
        "When a scan is cut",
    ],
)
async def test_the_snippets_of_a_section_run(section: str, shared_server: ServerProcess) -> None:
    columns = pa.schema([("player", pa.string()), ("score", pa.int64()), ("league", pa.string())])
    snippets = [text for language, text in _blocks(section) if language == "python"]
    assert snippets
    async with connect(shared_server.url) as client:
        name = f"readme.{section.lower().replace(' ', '_')}"
        table = await client.create_table(name, columns, primary_key=["player"])
        await table.upsert([{"player": f"ann{n}", "score": n, "league": "ab"[n % 2]} for n in range(500)])
        async with table.snapshot(ttl=60) as snapshot:
            stream = table.scan(columns=["player", "score"]).with_chunk(rows=10).stream()
            await anext(stream)
            known: dict[str, object] = {"client": client, "table": table, "snapshot": snapshot}
            known |= {"token": stream.resume_token, "Resume": Resume, "pa": pa}
            await stream.aclose()
            for snippet in snippets:
                await _run_as_coroutine(snippet, known)


async def _run_as_coroutine(snippet: str, known: dict[str, object]) -> None:
    namespace = dict(known)
    exec(f"async def snippet():\n{textwrap.indent(snippet, '    ')}", namespace)
    run: Any = namespace["snippet"]
    await run()


def test_the_snippets_for_spark_run(shared_server: ServerProcess, tmp_path: Path) -> None:
    java.check()
    snippets = [text for language, text in _blocks("From Spark") if language == "python"]
    session = (
        "from pyspark.sql import SparkSession\nfrom tests.spark import java\n"
        f"url = {shared_server.url!r}\nspark = java.configured(SparkSession.builder.master('local[1]')).getOrCreate()\n"
    )
    columns = pa.schema([("player", pa.string()), ("score", pa.int64()), ("league", pa.string())])
    with sync.connect(shared_server.url) as client:
        table = client.create_table("game.scores", columns, primary_key=["player"])
        table.upsert([{"player": f"ann{n}", "score": n, "league": "ab"[n % 2]} for n in range(500)])
    found = "print(sorted(leagues), best[0][0], rows, top[0].score, total)\n"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", session + "".join(snippets) + found],
        cwd=tmp_path,
        env={**os.environ, **java.environment()},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == [
        "[Row(league='a', count=250), Row(league='b', count=250)] 499 399 499 500"
    ], done.stderr[-3000:]


def test_every_make_target_named_exists() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page in ("README.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"(?:^|`)make ([a-z]+)", (ROOT / page).read_text(), re.MULTILINE))
        assert sorted(named - set(targets)) == [], page


def _blocks(section: str) -> list[tuple[str, str]]:
    """The code blocks of a section, each with its language."""
    text = re.search(rf"^## {section}\n(.*?)^## ", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert text is not None
    return BLOCK.findall(text[1])


def _script(blocks: list[tuple[str, str]]) -> str:
    """All blocks as one shell session, in which a reader's background server lives on from block to block."""
    lines = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
    for language, text in blocks:
        if language == "bash":
            lines.append(text)
        elif language == "python":
            lines.append(f"python - <<'END_OF_SNIPPET'\n{text}END_OF_SNIPPET")
    return "\n".join(lines)


def _run(script: str, directory: Path) -> str:
    """Runs the session in `directory` and returns what it prints, on a port of its own instead of the default one."""
    port = _free_port()
    environment = os.environ | {
        "PATH": f"{_programs(directory)}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SCANKV_PORT": str(port),
        "SCANKV_URL": f"127.0.0.1:{port}",
    }
    session = subprocess.Popen(
        ["bash", "-c", script],
        cwd=directory,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = session.communicate(timeout=60)
    finally:
        # Nothing is left of it when the session stopped its server, as the tour says.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(session.pid, signal.SIGKILL)
    assert session.returncode == 0, output
    return output


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
