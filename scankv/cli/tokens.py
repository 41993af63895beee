"""`tokens`: creates, lists and revokes the tokens of a server, in its token file."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from scankv.cli.options import Json
from scankv.cli.outcome import FAILED, complain, require_extra
from scankv.cli.show import show_json, show_table
from scankv.cli.snapshots import parse_duration
from scankv.model.errors import UsageError

app: typer.Typer = typer.Typer(
    help="Tokens: who may use a server, and for what. The commands work on the token file, without a server.",
    no_args_is_help=True,
)

TokenFile = Annotated[
    Path,
    typer.Option(
        "--tokens",
        metavar="FILE",
        envvar="SCANKV_TOKENS",
        help="The token file of the server, as in `scankv serve --tokens FILE`.",
        show_default=False,
    ),
]


_DEFAULT = " Default: that of the server."


@app.command()
def create(
    tokens: TokenFile,
    principal: Annotated[
        str, typer.Argument(metavar="PRINCIPAL", help="Whom the token stands for, in logs.", show_default=False)
    ],
    grant: Annotated[
        list[str],
        typer.Option(
            metavar="ROLE:PATTERN",
            help="What the token allows: read, write or admin, for the tables that match a pattern, as in "
            "'read:sales.*'. write includes read, and admin includes write. Repeatable.",
            show_default=False,
        ),
    ],
    certificate: Annotated[
        str | None,
        typer.Option(
            metavar="KIND=NAME",
            help="Grant this to the client certificates with a name, as in CN=reports or DNS=reports.example.com, and "
            "make no token. KIND is CN, DNS, URI or EMAIL. Needs a server with --tls-client-ca.",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long the token is valid, as in 90d. Default: until it is revoked."),
    ] = None,
    max_scans: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="The most live scans and streams. 0: no limit." + _DEFAULT)
    ] = None,
    max_requests_per_second: Annotated[
        float | None, typer.Option(min=0, metavar="N", help="The most calls in a second. 0: no limit." + _DEFAULT)
    ] = None,
    max_bytes_per_second: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="The most bytes in a second, in both directions. 0: no limit." + _DEFAULT
        ),
    ] = None,
) -> None:
    """Create a token, and print it.

    The token is printed once and stored nowhere: the file only has its hash. A running server accepts the token at
    once. With --certificate, clients with such a certificate need no token, and none is made.
    """
    with require_extra("server"):
        from streaming_server.access.token_file import create_token
    now = datetime.now(UTC)
    given = {
        "scans": max_scans,
        "requests_per_second": max_requests_per_second,
        "bytes_per_second": max_bytes_per_second,
    }
    limits = {name: value for name, value in given.items() if value is not None}
    record, token = create_token(
        tokens, principal, grant, now=now, expires=_expiry(expires, now), limits=limits, certificate=certificate
    )
    if record.certificate:
        typer.echo(f"granted to certificates with {record.certificate}, as {record.id} of {principal}", err=True)
        return
    typer.echo(f"created the token {record.id} of {principal}; this is the only time that it is shown:", err=True)
    typer.echo(token)


@app.command("list")
def list_(tokens: TokenFile, json: Json = False) -> None:
    """List the tokens: whom they stand for, what they grant, and whether they are valid."""
    with require_extra("server"):
        from streaming_server.access.token_file import read_tokens
    records, now = list(read_tokens(tokens).values()), datetime.now(UTC).timestamp()
    states = [record.state(now) for record in records]
    if json:
        show_json(
            [
                {
                    "id": record.id,
                    "principal": record.principal,
                    "certificate": record.certificate or None,
                    "grants": record.grants,
                    "state": state,
                    "created_at": record.created,
                    "expires_at": record.expires,
                    "revoked_at": record.revoked,
                    "limits": dict(record.limits),
                }
                for record, state in zip(records, states, strict=True)
            ]
        )
    elif records:
        show_table(
            ["token", "principal", "certificate", "grants", "state", "created", "expires"],
            [
                [
                    record.id,
                    record.principal,
                    record.certificate or "-",
                    " ".join(record.grants),
                    state,
                    record.created,
                    record.expires or "never",
                ]
                for record, state in zip(records, states, strict=True)
            ],
        )
    else:
        typer.echo("the file has no tokens; create one: scankv tokens create PRINCIPAL --grant ROLE:PATTERN", err=True)


@app.command()
def revoke(
    tokens: TokenFile,
    token_ids: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="The ids of tokens, as `tokens list` shows them.", show_default=False),
    ],
) -> None:
    """Revoke tokens. A running server refuses them, and ends their streams, within two seconds.

    The exit code is 1 if a token does not exist; the others are revoked anyway.
    """
    with require_extra("server"):
        from streaming_server.access.token_file import read_tokens, revoke_tokens
    read_tokens(tokens)  # Fails if there is no file, which revoking would create.
    unknown = revoke_tokens(tokens, token_ids, now=datetime.now(UTC))
    for token_id in token_ids:
        if token_id in unknown:
            # Not the text itself: the user may have given a token instead of its id.
            complain(f"the file {tokens} has no token with the id {token_id[:4]}...; see: scankv tokens list")
        else:
            typer.echo(f"revoked {token_id}")
    if unknown:
        raise typer.Exit(FAILED)


def _expiry(text: str | None, now: datetime) -> datetime | None:
    if text is None:
        return None
    try:
        return now + timedelta(seconds=parse_duration(text))
    except OverflowError:
        raise UsageError(
            f"--expires {text} is too far in the future: leave it out for a token without expiry"
        ) from None
