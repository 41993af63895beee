"""A real server that uses TLS and asks for tokens, and the files that its clients need."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from streaming_server.access.token_file import create_token, revoke_tokens
from tests.support.certificates import Authority
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path


class TlsServer:
    """A server with TLS and tokens, in a process of its own.

    Attributes:
        url: Its url, `scankvs://localhost:PORT`.
        authority: Who has issued its certificate.
        root: A token that grants everything.
        process: The process.
    """

    def __init__(self, directory: Path, *settings: str, client_certificates: bool = False) -> None:
        self.authority = Authority(directory)
        self._tokens = directory / "tokens"
        self.root = self.create_token("admin:*")
        certificate, key = self.authority.issue("server", "localhost")
        flags = ["--tokens", str(self._tokens), "--tls-certificate", str(certificate), "--tls-key", str(key)]
        if client_certificates:
            flags += ["--tls-client-ca", str(self.authority.path)]
        self.process = ServerProcess(directory / "data", *flags, *settings)
        self.url = f"scankvs://localhost:{self.process.url.rpartition(':')[2]}"

    def create_token(self, *grants: str) -> str:
        """Creates a token with these grants."""
        return create_token(self._tokens, "someone", grants, now=datetime.now(UTC))[1]

    def revoke_token(self, token: str) -> None:
        """Revokes a token, which the server notices within two seconds."""
        revoke_tokens(self._tokens, [token.split("_")[1]], now=datetime.now(UTC))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
