"""`scankv sql` on a terminal: a shell with history, and completion of tables and columns."""

from __future__ import annotations

import os
import re
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from scankv.cli.outcome import complain
from scankv.cli.results import OutputFormat, show_first, write_batches
from scankv.formats.files import Format
from scankv.formats.printable import printable
from scankv.model.counts import counted
from scankv.model.errors import ScanKvError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aio_client import sync

_MOST_LINES: Final = 1_000
_NAME: Final = re.compile(r'[\w.]+|"[^"]+"')
_WORDS: Final = (
    *("select", "from", "where", "group by", "order by", "having", "limit", "join", "using", "with", "as", "distinct"),
    *(
        "count(*)",
        "sum(",
        "min(",
        "max(",
        "avg(",
        "between",
        "like",
        "is null",
        "is not null",
        "and",
        "or",
        "not",
        "in",
    ),
)
_SHOWN: Final = (OutputFormat.TABLE, OutputFormat.CSV, OutputFormat.JSONL)
_HELP: Final = """\
SQL ends with a semicolon. Ctrl-C ends a query, Ctrl-D the shell.
.tables           list the tables
.columns TABLE    list the columns of a table
.explain QUERY    show what the server and DuckDB would do
.format FORMAT    show rows as table, csv or jsonl
.timing on|off    show how long queries take
.quit             end the shell"""


class SqlShell:
    """Reads statements and commands from a terminal, and runs them.

    Args:
        client: The client of the server.
        shown_as: How rows are shown at first.
    """

    def __init__(self, client: sync.Client, shown_as: OutputFormat) -> None:
        self._client = client
        self._format = shown_as
        self._has_timing = True
        self._matches: list[str] = []
        self._commands: dict[str, Callable[[str], None]] = {
            ".tables": lambda _: self._show_tables(),
            ".columns": self._show_columns,
            ".explain": self._explain,
            ".format": self._choose_format,
            ".timing": self._choose_timing,
            ".help": lambda _: typer.echo(_HELP),
        }

    def run(self) -> None:
        """Runs until the end of the input or `.quit`."""
        import readline

        history = _history()
        with suppress(OSError):
            readline.read_history_file(history)
        readline.set_history_length(_MOST_LINES)
        readline.set_completer(self._complete)
        readline.set_completer_delims(" \t\n,()=<>;")
        readline.parse_and_bind("tab: complete")
        typer.echo(f"{self._client.config.address}: SQL over live tables; .help for help", err=True)
        try:
            while (text := self._read()) is not None:
                with _complaints():
                    self._do(text)
        finally:
            with suppress(OSError):
                history.parent.mkdir(parents=True, exist_ok=True)
                readline.write_history_file(history)
                history.chmod(0o600)

    def _read(self) -> str | None:
        """Returns the next statement or command. None at the end."""
        lines: list[str] = []
        while True:
            try:
                lines.append(input("   ...> " if lines else "scankv> "))
            except KeyboardInterrupt:
                typer.echo()
                lines = []
                continue
            except EOFError:
                typer.echo()
                return None
            text = "\n".join(lines).strip()
            if text in (".quit", ".exit"):
                return None
            if text.startswith(".") or text.endswith(";"):
                return text
            if not text:
                lines = []

    def _do(self, text: str) -> None:
        if not text.startswith("."):
            self._query(text)
            return
        name, _, rest = text.partition(" ")
        if name not in self._commands:
            raise UsageError(f"{name} is no command of the shell: .help lists them")
        self._commands[name](rest.strip().removesuffix(";"))

    def _query(self, text: str) -> None:
        began = time.monotonic()
        asked = self._client.sql(text)
        done = asked.run() if asked.writes else None
        rows = None if done else asked.to_arrow()
        took = time.monotonic() - began
        if rows is None:
            typer.echo(str(done))
        elif self._format is OutputFormat.TABLE:
            show_first(rows, cut=True, remedy="`scankv sql -o FILE`")
        else:
            write_batches(rows.to_batches(), rows.schema, Format(self._format), None)
            typer.echo(counted(rows.num_rows, "row"), err=True)
        if self._has_timing:
            typer.echo(f"{took * 1000:,.0f} ms", err=True)

    def _show_tables(self) -> None:
        for table in self._client.tables():
            typer.echo(printable(table.name))

    def _show_columns(self, name: str) -> None:
        for field in self._client.table(name).schema:
            typer.echo(printable(f"{field.name} {field.type}{'' if field.nullable else ' not null'}"))

    def _explain(self, text: str) -> None:
        typer.echo(printable(str(self._client.sql(text).explain()), lines=True))

    def _choose_format(self, text: str) -> None:
        if text not in _SHOWN:
            raise UsageError(f".format takes {', '.join(_SHOWN[:-1])} or {_SHOWN[-1]}, not {text!r}")
        self._format = OutputFormat(text)

    def _choose_timing(self, text: str) -> None:
        if text not in ("on", "off"):
            raise UsageError(f".timing takes on or off, not {text!r}")
        self._has_timing = text == "on"

    def _complete(self, text: str, number: int) -> str | None:
        """Returns a completion of a word, as readline asks for it."""
        if number == 0:
            import readline

            with suppress(ScanKvError):
                self._matches = self._names_like(text, readline.get_line_buffer())
        return self._matches[number] if number < len(self._matches) else None

    def _names_like(self, text: str, line: str) -> list[str]:
        if line.lstrip().startswith(".") and " " not in line.lstrip():
            return [name for name in (*self._commands, ".quit") if name.startswith(text)]
        tables = [table.name for table in self._client.tables()]
        used = [name for name in _NAME.findall(line) if name in tables and name != text]
        columns = [column for name in used for column in self._client.table(name).schema.names]
        return [each for each in dict.fromkeys([*tables, *columns, *_WORDS]) if each.startswith(text)]


@contextmanager
def _complaints() -> Iterator[None]:
    """Prints the error of a statement, so that the shell goes on."""
    try:
        yield
    except ScanKvError as error:
        complain(error.message)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)


def _history() -> Path:
    """Returns where the history is: `$XDG_STATE_HOME/scankv/sql_history`, by default in `~/.local/state`."""
    home = os.environ.get("XDG_STATE_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path("~/.local/state").expanduser()
    return base / "scankv" / "sql_history"
