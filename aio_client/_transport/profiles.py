"""Named profiles of `~/.config/scankv/config.toml`: how to reach a server, and with which token and certificates."""

from __future__ import annotations

import os
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aio_client._transport.tls import Tls
from aio_client._transport.tokens import StoredToken, TokenEnv, TokenFile, TokenSource, check_token
from scankv.model.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOKENS: Final = ("token", "token_file", "token_env")
_TLS: Final = ("tls_ca", "tls_certificate", "tls_key", "tls_server_name")
PROFILE_KEYS: Final = ("url", *_TOKENS, "tls", *_TLS)
"""What a profile may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccess:
    """How to reach a server, as far as one place says so: a call, the environment, or a profile.

    Attributes:
        url: The server. None: the place does not say it.
        token: Where the token is. None: the place does not say it.
        tls: The TLS settings, or whether to use TLS. None: the place does not say it.
    """

    url: str | None = None
    token: TokenSource | None = None
    tls: Tls | bool | None = None


class ProfileToken(StoredToken):
    """The token in a profile. A pickle has the name of the profile and no token."""

    __slots__ = ("name",)

    name: str

    def __init__(self, name: str) -> None:
        """Reads nothing yet."""
        self._set(name=name)

    def read(self) -> str:
        """See `StoredToken.read`."""
        path = config_path()
        _check_private(path, self.name)
        token = read_profile_values(self.name).get("token")
        if token is None:
            raise UsageError(f'profile "{self.name}" of {path} no longer has a token', option="profile")
        return check_token(token, f'key "token" of profile "{self.name}"')

    def version(self) -> object:
        """See `StoredToken.version`."""
        return TokenFile(config_path()).version()

    def __repr__(self) -> str:
        return f"<the token of profile {self.name!r}>"

    def __reduce__(self) -> tuple[object, ...]:
        return ProfileToken, (self.name,)


def config_path() -> Path:
    """Returns where the profiles are: `$XDG_CONFIG_HOME/scankv/config.toml`, by default in `~/.config`."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    # The specification of these directories ignores relative paths.
    base = Path(home) if os.path.isabs(home) else Path("~/.config").expanduser()
    return base / "scankv" / "config.toml"


def profile_names() -> list[str]:
    """Returns the names of all profiles, sorted; none without a file."""
    return sorted(_read_profiles(config_path())) if config_path().exists() else []


def read_profile(name: str) -> ServerAccess:
    """Reads a profile. Paths in it are relative to the directory of the file.

    Raises:
        UsageError: There is no such profile, or it is not valid.
    """
    values = read_profile_values(name)
    path = config_path()
    where = f'profile "{name}" of {path}'
    tokens = [key for key in _TOKENS if key in values]
    if len(tokens) > 1:
        raise UsageError(f"{where} has {' and '.join(tokens)}: leave all but one of them out", option="profile")
    token: TokenSource | None = None
    if "token" in values:
        _check_private(path, name)
        check_token(values["token"], f'key "token" of {where}')
        token = ProfileToken(name)
    elif "token_file" in values:
        token = TokenFile(_absolute(values["token_file"], path))
    elif "token_env" in values:
        token = TokenEnv(values["token_env"])
    return ServerAccess(url=values.get("url"), token=token, tls=_tls_of(values, path, where))


def read_profile_values(name: str) -> dict[str, Any]:
    """Returns the keys and values of a profile, which are of the right types.

    Raises:
        UsageError: There is no such profile, it has an unknown key, or a value of the wrong type.
    """
    path = config_path()
    if not isinstance(name, str) or not name:
        raise UsageError(f"profile must be the name of a profile in {path}, not {name!r:.80}", option="profile")
    profiles = _read_profiles(path)
    if name not in profiles:
        hint = did_you_mean(name, sorted(profiles)) or f"; write [profiles.{name}] there"
        raise UsageError(f'there is no profile "{name}" in {path}{hint}', option="profile")
    values: dict[str, Any] = profiles[name]
    for key, value in values.items():
        if key not in PROFILE_KEYS:
            raise UsageError(
                f'profile "{name}" of {path} has the unknown key "{key}"{did_you_mean(key, PROFILE_KEYS)}',
                option="profile",
            )
        wanted = bool if key == "tls" else str
        # The value is not shown: it may be a token.
        if not isinstance(value, wanted) or value == "":
            what = "true or false" if wanted is bool else "a string that is not empty"
            raise UsageError(f'key "{key}" of profile "{name}" of {path} must be {what}', option="profile")
    return values


def _read_profiles(path: Path) -> dict[str, dict[str, Any]]:
    try:
        with path.open("rb") as file:
            found = tomllib.load(file)
    except FileNotFoundError:
        raise UsageError(
            f"profiles are in {path}, which does not exist: write [profiles.NAME] with a url there", option="profile"
        ) from None
    except OSError as error:
        raise UsageError(f"the profiles in {path} cannot be read: {error.strerror}", option="profile") from None
    except ValueError as error:
        raise UsageError(f"{path} is not valid TOML: {_without_excerpt(error)}", option="profile") from None
    for key in found:
        if key != "profiles":
            raise UsageError(f'{path} has the unknown key "{key}": it may have [profiles.NAME] only', option="profile")
    profiles = found.get("profiles", {})
    if not isinstance(profiles, dict) or not all(isinstance(each, dict) for each in profiles.values()):
        raise UsageError(f"profiles in {path} must be tables, as [profiles.NAME]", option="profile")
    return profiles


def _without_excerpt(error: ValueError) -> str:
    # Only where the error is: some messages show what is there, which may be part of a token.
    _, at, place = str(error).rpartition("(at ")
    return f"see {place.rstrip(')')}" if at else "it cannot be parsed"


def _tls_of(values: Mapping[str, Any], path: Path, where: str) -> Tls | bool | None:
    settings = {key.removeprefix("tls_"): values[key] for key in _TLS if key in values}
    if not settings:
        return values.get("tls")
    if values.get("tls") is False:
        raise UsageError(f"{where} has tls = false and settings of TLS: leave one of them out", option="profile")
    for key in ("ca", "certificate", "key"):
        if key in settings:
            settings[key] = _absolute(settings[key], path)
    return Tls(**settings)


def _absolute(text: str, config: Path) -> str:
    return str(config.parent / Path(text).expanduser())


def _check_private(path: Path, name: str) -> None:
    """Raises UsageError if other users may read the file."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # Reading it reports this.
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(
            f'profile "{name}" has a token, and other users may read {path} (mode {stat.S_IMODE(mode):o}): run '
            f"chmod 600 {path}, or use token_file",
            option="profile",
        )
