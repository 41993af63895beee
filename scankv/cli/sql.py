"""`sql`: runs a query over live tables and files."""

import sys
from typing import Annotated

import typer

from scankv.cli.connecting import open_client
from scankv.cli.options import Url
from scankv.cli.results import FormatOption, OutputFormat, OutputOption, choose_format, show_first, write_batches
from scankv.cli.show import is_terminal
from scankv.formats.files import Format
from scankv.formats.printable import printable
from scankv.model.errors import UsageError


def sql(
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUERY]",
            help="One statement in the SQL of DuckDB; - reads standard input. Default: a shell.",
            show_default=False,
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print what the server and DuckDB would do, and read nothing.")
    ] = False,
    parameters: Annotated[
        list[str] | None,
        typer.Option("--param", metavar="NAME=VALUE", help="A value for $NAME in the query, as text. Repeatable."),
    ] = None,
    format_: FormatOption = None,
    output: OutputOption = None,
    url: Url = None,
) -> None:
    """Run SQL over live tables, as DATABASE.TABLE, and files, as 'FILE.parquet'.

    DuckDB runs it in this process, and the server evaluates its filters. A query shows one instant of all of its
    tables. A table on a terminal stops after 100 rows; for others, write a file. INSERT, UPDATE, DELETE and MERGE are
    one transaction each; CREATE TABLE, DROP TABLE, and ADD and RENAME COLUMN work, too. Without QUERY, a terminal gets
    a shell with history, and completion of tables and columns.
    """
    chosen = choose_format(format_, output)
    if query is None and sys.stdin.isatty() and output is None:
        from scankv.cli.sql_shell import SqlShell

        with open_client(url) as client:
            SqlShell(client, chosen).run()
        return
    values = dict(map(_parameter, parameters or []))
    with open_client(url) as client:
        asked = client.sql(sys.stdin.read() if query is None or query == "-" else query, values or None)
        if asked.writes:
            if explain or format_ is not None or output is not None:
                raise UsageError("a statement that writes has no rows: leave out --format and -o, and --explain")
            typer.echo(str(asked.run()))
            return
        if explain:
            typer.echo(printable(str(asked.explain()), lines=True))
            return
        rows = asked.to_arrow()
    if chosen is OutputFormat.TABLE:
        show_first(rows, cut=is_terminal(), remedy="-o FILE")
    else:
        write_batches(rows.to_batches(), rows.schema, Format(chosen), output)


def _parameter(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(f"--param must be NAME=VALUE, as in --param least=10, not {text!r}", option="--param")
    return name, value
