"""Runs the code of a documentation page from top to bottom, as a reader would.

A page is Markdown. Its fenced blocks run in order: `bash` in one shell, `python` in one namespace with top-level
`await`, `sql` in a Spark session. A comment after a `print` is what that line must print. A `text` block is what the
block before it must print last. A page says three things about its own snippets:

- A fence whose info string ends with `no-run` is only shown.
- A comment `<!-- python ... -->` or `<!-- bash ... -->`, with its code on separate lines, runs but is not shown. It
  contains what a snippet needs and the reader already has.
- A comment `<!-- snippets: spark -->` makes the page run in a Spark session, available as `spark`.

The blocks of a page that has a block `python -m asyncio` are typed into that program. All other pages share one server
and find `client` and `table` as the quickstart leaves them, unless the page starts its own server with `scankv serve`.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import functools
import inspect
import io
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
from markdown_it import MarkdownIt

import scankv
from scankv import sync
from tests.support.forked_programs import ForkedPrograms

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
REPL = "python -m asyncio"
PRINTED = re.compile(r"^ *print\(.*\)  # (.+)$", re.MULTILINE)
HIDDEN = re.compile(r"\A<!-- (python|bash)\n(.*?)-->\s*\Z", re.DOTALL)
END = "end of a block"
GONE = "end of the shell"
LANGUAGES = ("bash", "python", "sql", "text")
SHOWN_ADDRESS = "localhost:7070"
SHOWN_GATEWAY = "localhost:7080"
CHECKPOINT = '"checkpointLocation", "'
QUICKSTART_ROWS = [
    {"player": "ann", "score": 99, "league": "a"},
    {"player": "bob", "score": 27, "league": "b"},
    {"player": "cem", "score": 44, "league": "a"},
    {"player": "dan", "score": 12, "league": "b"},
    *({"player": f"p{n}", "score": n, "league": "ab"[n % 2]} for n in range(500)),
]


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A code block of a page, and the line on which it begins."""

    language: str
    code: str
    line: int


@dataclass(frozen=True, slots=True)
class Page:
    """A page, by its path in the repository, and the blocks that run."""

    path: str
    blocks: tuple[CodeBlock, ...]
    is_for_spark: bool

    @property
    def starts_a_server(self) -> bool:
        return any(block.language == "bash" and "scankv serve" in block.code for block in self.blocks)

    @property
    def is_typed(self) -> bool:
        return any(block.language == "bash" and block.code.strip() == REPL for block in self.blocks)


def read_page(path: str) -> Page:
    text = (ROOT / path).read_text()
    blocks = []
    for token in MarkdownIt().parse(text):
        line = token.map[0] + 1 if token.map else 0
        hidden = HIDDEN.match(token.content) if token.type == "html_block" else None
        if hidden:
            blocks.append(CodeBlock(hidden[1], textwrap.dedent(hidden[2]), line + 1))
        if token.type == "fence":
            language, _, rest = token.info.strip().partition(" ")
            if language in LANGUAGES and rest != "no-run":
                blocks.append(CodeBlock(language, token.content, line + 1))
    return Page(path, tuple(blocks), "<!-- snippets: spark -->" in text)


@functools.cache
def list_pages() -> list[Page]:
    """Returns all pages that have code to run or are marked for Spark."""
    docs = (path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md")))
    paths = ["README.md", *(path for path in docs if not path.startswith("docs/_"))]
    return [
        page
        for page in map(read_page, paths)
        if page.is_for_spark or {block.language for block in page.blocks} - {"text"}
    ]


def run_page(page: Page, directory: Path, url: str, **names: Any) -> dict[str, Any]:
    """Runs a page in an empty directory against the server at `url`, and returns the names that its Python defines."""
    if page.starts_a_server:
        with contextlib.chdir(directory), _environment(directory, f"127.0.0.1:{_free_port()}"):
            return _run_blocks(page, directory, names)
    with contextlib.chdir(directory), _environment(directory, url), _quickstart_table(url):
        return _run_blocks(page, directory, {"url": url, **names})


def _run_blocks(page: Page, directory: Path, names: dict[str, Any]) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        shell: _Session | None = None
        python: _Typed | _InProcess | None = None
        output = ""
        for block in page.blocks:
            where = f"{page.path}:{block.line}"
            if block.language == "bash" and block.code.strip() == REPL:
                python = stack.enter_context(_Typed(directory))
            elif block.language == "bash":
                if shell is None:
                    shell = stack.enter_context(_Session(["bash", "-e"], directory))
                    # Programs in the background keep the output open when the shell ends.
                    shell.type(f"trap 'echo {GONE}' EXIT\n", f"echo {END!r}", where)
                output = shell.type(block.code, f"echo {END!r}", where)
            elif block.language == "sql":
                output = _run_sql(block.code, names["spark"])
            elif block.language == "python":
                assert python is not None or not page.is_typed, f"{where} stands before `{REPL}`"
                if python is None:
                    python = stack.enter_context(_InProcess(names, has_client=not page.starts_a_server))
                output = python.run(block, page.path)
                lines = output.splitlines()
                missing = [line for line in PRINTED.findall(block.code) if line not in lines]
                assert not missing, f"{where} does not print {missing}, but:\n{output}"
            else:
                lines = block.code.splitlines()
                assert output.splitlines()[-len(lines) :] == lines, f"{where} is not what is printed:\n{output}"
    return names


class _InProcess:
    """Runs the Python blocks of a page in this process, in one event loop."""

    def __init__(self, names: dict[str, Any], *, has_client: bool) -> None:
        self.names = names
        self._runner = asyncio.Runner()
        self._has_client = has_client

    def __enter__(self) -> _InProcess:
        self._runner.__enter__()
        if self._has_client and "spark" not in self.names:
            self._runner.run(self._connect())
        return self

    async def _connect(self) -> None:
        self.names["client"] = await scankv.connect()
        self.names["table"] = await self.names["client"].table("game.scores")

    def run(self, block: CodeBlock, path: str) -> str:
        """Runs a block, in the event loop only if it awaits, since the blocking client refuses to run inside a loop."""
        source = "\n" * (block.line - 1) + block.code.replace(SHOWN_ADDRESS, os.environ["SCANKV_URL"])
        # A page that shows a gateway has started one, on a port that is free.
        source = source.replace(SHOWN_GATEWAY, os.environ.get("SCANKV_SHOWN_GATEWAY", SHOWN_GATEWAY))
        # Spark's JVM has its own working directory.
        source = source.replace(CHECKPOINT, f"{CHECKPOINT}{Path.cwd()}/")
        code = compile(source, path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            result = eval(code, self.names)
            if code.co_flags & inspect.CO_COROUTINE:
                self._runner.run(result)
        return printed.getvalue()

    def __exit__(self, *_: object) -> None:
        for value in list(self.names.values()):
            if isinstance(value, scankv.Client):
                self._runner.run(value.aclose())
            elif isinstance(value, sync.Client):
                value.close()
        self._runner.close()


class _Session:
    """An interactive program that gets blocks as input."""

    def __init__(self, command: list[str], directory: Path) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=directory,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self) -> _Session:
        return self

    def type(self, text: str, at_the_end: str, where: str) -> str:
        """Types a block, and returns the output until the block has run. Fails if the program ends before."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{text.replace(SHOWN_ADDRESS, os.environ['SCANKV_URL'])}{at_the_end}\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line.strip().endswith(END):
                return "".join(lines)
            if line.strip().endswith(GONE):
                break
            lines.append(line)
        raise AssertionError(f"the session has ended in {where}:\n{text}\nand said\n{''.join(lines)}")

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


class _Typed:
    """Types the Python blocks of a page at the prompt of `python -m asyncio`."""

    def __init__(self, directory: Path) -> None:
        self._session = _Session([sys.executable, "-W", "ignore", "-m", "asyncio"], directory)

    def __enter__(self) -> _Typed:
        return self

    def run(self, block: CodeBlock, path: str) -> str:
        # An empty line ends a loop. The output comes after prompts.
        output = self._session.type(block.code, f"\nprint({END!r})", f"{path}:{block.line}")
        assert "Traceback" not in output, output
        return re.sub(r"^(?:(?:>>>|\.\.\.) )+", "", output, flags=re.MULTILINE)

    def __exit__(self, *_: object) -> None:
        self._session.__exit__()


def _run_sql(code: str, spark: Any) -> str:
    statements = code.replace(SHOWN_ADDRESS, os.environ["SCANKV_URL"]).split(";\n")
    return "\n".join(str(row) for text in statements if text.strip() for row in spark.sql(text).collect())


@contextlib.contextmanager
def _quickstart_table(url: str) -> Iterator[None]:
    """Creates the table `game.scores` as the quickstart leaves it. Drops all tables of the page afterwards."""
    columns = pa.schema([("player", pa.string()), ("score", pa.int64()), ("league", pa.string())])
    with sync.connect(url) as client:
        before = {table.name for table in client.tables()}
        table = client.create_table("game.scores", columns, primary_key=["player"], buckets=4)
        table.upsert(QUICKSTART_ROWS)
        try:
            yield
        finally:
            for made in {table.name for table in client.tables()} - before:
                client.drop_table(made)


@contextlib.contextmanager
def _environment(directory: Path, url: str) -> Iterator[None]:
    """Returns the environment of programs and clients, with the `python` and `scankv` of this interpreter."""
    programs = directory / "bin"
    programs.mkdir()
    # Not a link, from which Python would not find its environment.
    python = programs / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    changes = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "PYTHON_BASIC_REPL": "1",
        "SCANKV_PORT": url.rpartition(":")[2],
        "SCANKV_URL": url,
    }
    with ForkedPrograms() as forked, mock.patch.dict(os.environ, changes):
        forked.write(programs / "scankv", "scankv")
        yield


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
