"""Finds out who calls: by both kinds of tokens, those of the token file and those of an issuer, or by a certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from streaming_server.access.token_file import PREFIX

if TYPE_CHECKING:
    from streaming_server.access.callers import CallerIdentity, TokenStore
    from streaming_server.access.certificates import ClientCertificate
    from streaming_server.access.jwt_verifier import JwtVerifier

_NO_FILE: Final = "the server has no token file, which could name certificates"


class Authenticator:
    """Verifies tokens. Bound to the event loop.

    Args:
        tokens: The tokens of the token file. None: the server has no such file.
        issued: Verifies the tokens of an issuer. None: the server accepts none.
    """

    def __init__(self, tokens: TokenStore | None, issued: JwtVerifier | None = None) -> None:
        self._tokens = tokens
        self._issued = issued

    @property
    def accepted(self) -> str:
        """Which tokens are accepted, for errors that every caller may see."""
        created, issued = "scankv tokens create", "JSON web tokens (JWT) of its identity provider"
        if self._issued is None:
            return f"the operator of the server creates tokens with: {created}"
        if self._tokens is None:
            return f"the server accepts {issued}"
        return f"the server accepts tokens that its operator creates with {created}, and {issued}"

    def find(self, token: str) -> CallerIdentity | None:
        """Returns the caller with a token of the token file that was verified before; None if `verify` must look at it.

        Most calls need nothing else.
        """
        return None if self._tokens is None else self._tokens.find(token)

    async def verify(self, token: str) -> CallerIdentity | str:
        """Returns the caller with a token, or why the token is refused, for the log only."""
        # A JSON web token begins with an encoded brace, so it never begins like this.
        if self._tokens is not None and (self._issued is None or token.startswith(f"{PREFIX}_")):
            return self._tokens.verify(token)
        if self._issued is not None:
            return await self._issued.verify(token)
        return "the server accepts no tokens"

    def identify(self, certificate: ClientCertificate) -> CallerIdentity | str:
        """Returns the caller with a certificate of TLS and no token, or why it is refused, for the log only."""
        return _NO_FILE if self._tokens is None else self._tokens.identify(certificate)

    def certified(self, id_: str, ends: float) -> CallerIdentity | str:
        """Returns a caller whom another worker has identified by a certificate. See `TokenStore.certified`."""
        return _NO_FILE if self._tokens is None else self._tokens.certified(id_, ends)

    def renewed(self, caller: CallerIdentity) -> CallerIdentity | str:
        """Returns a caller who was verified before as of now, or why the caller's token is no longer valid."""
        if self._tokens is not None and caller.token_id:
            return self._tokens.renewed(caller)
        from streaming_server.access.jwt_verifier import IssuedCaller

        assert self._issued is not None
        assert isinstance(caller, IssuedCaller)
        return self._issued.renewed(caller)

    def reload(self) -> None:
        """Reads files again that have changed. Called every second."""
        if self._tokens is not None:
            self._tokens.reload()
        if self._issued is not None:
            self._issued.check()

    async def run(self) -> None:
        """Keeps the keys of the issuer up to date until it is cancelled."""
        if self._issued is not None:
            await self._issued.run()
