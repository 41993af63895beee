"""`demo`: loads, changes and streams real data, and checks the results."""

import typer

from scankv.cli.without_pandas import let_pandas_in


def demo() -> None:
    """Load 336,776 real flights into a temporary server, stream them while they change, and check all sums.

    The exit code is 1 if a figure differs from the source.
    """
    let_pandas_in()
    from scankv.demo import run

    raise typer.Exit(run())
