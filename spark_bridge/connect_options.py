"""The options that say how to connect to a server, besides `url`.

Rule: *no option contains a secret*. Spark shows options in plans and web pages, stores them in catalogs, and pickles
them for its workers. So these options name a file, an environment variable or a profile, which each process reads
itself.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from aio_client import Tls, sync
    from aio_client._transport.tokens import TokenSource

_TLS: Final = ("tls_ca", "tls_certificate", "tls_key", "tls_server_name")
CONNECT_NAMES: Final = ("profile", "token_file", "token_env", "tls", *_TLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOptions:
    """How to connect to a server, besides its url. Immutable; picklable, since it names secrets and contains none.

    Attributes:
        profile: A profile of `~/.config/scankv/config.toml`, which is read where Spark plans. Files that it names, and
            a token in it, are read in each process.
        token: Where each process reads the token.
        tls: Whether to use TLS, or the files that each process reads.
    """

    profile: str | None = None
    token: TokenSource | None = None
    tls: Tls | bool | None = None

    def __post_init__(self) -> None:
        """Raises UsageError for a token that is text, and for a key that is bytes."""
        pickle.dumps((self.token, self.tls))

    @classmethod
    def take_from(cls, texts: dict[str, str]) -> ConnectOptions:
        """Parses these options, and removes them from `texts`, which has all options under their normalized names.

        Raises:
            UsageError: A value is invalid, or options exclude each other.
        """
        given = {name: texts.pop(name) for name in CONNECT_NAMES if name in texts}
        if not given:
            return cls()
        # Spark imports this module for discovery, even in sessions that read no table of ScanKV.
        from aio_client import Tls, TokenEnv, TokenFile

        if "token_file" in given and "token_env" in given:
            raise UsageError("option token_file cannot be combined with token_env: leave one of them out")
        token: TokenSource | None = None
        if "token_file" in given:
            token = TokenFile(given["token_file"])
        elif "token_env" in given:
            token = TokenEnv(given["token_env"])
        settings: dict[str, Any] = {name.removeprefix("tls_"): given[name] for name in _TLS if name in given}
        wanted = given.get("tls", "true" if settings else "").lower()
        if wanted not in ("true", "false", "") or ("tls" in given and not wanted):
            raise UsageError(f"option tls must be true or false, not {given['tls']!r:.80}", option="tls")
        if wanted == "false" and settings:
            raise UsageError(
                f"option tls cannot be false with option tls_{next(iter(settings))}: leave one of them out",
                option="tls",
            )
        tls = Tls(**settings) if settings else {"true": True, "false": False, "": None}[wanted]
        return cls(profile=given.get("profile"), token=token, tls=tls)

    def open_client(self, url: str | None) -> sync.Client:
        """Opens a client. Raises UsageError as `scankv.sync.connect` does."""
        from aio_client import sync

        return sync.connect(url, token=self.token, tls=self.tls, profile=self.profile)
