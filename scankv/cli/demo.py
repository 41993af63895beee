"""`demo`: a whole round with real data."""

import typer

from scankv.cli.without_pandas import let_pandas_in


def demo() -> None:
    """Load 336,776 real flights into a server of its own, stream them back while they change, and check every sum.

    The exit code is 1 when a figure differs from the source.
    """
    let_pandas_in()
    from scankv.demo import run

    raise typer.Exit(run())
