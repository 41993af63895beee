"""Where the address, the token and the TLS settings of a client come from: the call, the environment, or a profile.

Each of the three comes completely from the first place that has it: the arguments of the call, the profile that the
call names, the environment, the profile that the environment names.

Rule: *a token is sent only to the server that it was meant for*. A place that names a server has a token and TLS
settings for that server; if another place names another server, they are not used. A profile that the call names is
always used, because the caller has chosen it for this call.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from aio_client._transport.config import DEFAULT_URL, address_of, is_encrypted, is_plain
from aio_client._transport.profiles import ServerAccess, read_profile
from aio_client._transport.tls import Tls
from aio_client._transport.tokens import TokenEnv, TokenFile
from scankv.model.errors import UsageError
from scankv.model.shown_uris import show_server

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aio_client._transport.tokens import TokenSource

URL: Final = "SCANKV_URL"
TOKEN: Final = "SCANKV_TOKEN"
TOKEN_FILE: Final = "SCANKV_TOKEN_FILE"
TLS_CA: Final = "SCANKV_TLS_CA"
# Not `SCANKV_TLS_...`, which are settings of the server: both may run in one environment.
CLIENT_CERTIFICATE: Final = "SCANKV_CLIENT_CERTIFICATE"
CLIENT_KEY: Final = "SCANKV_CLIENT_KEY"
PROFILE: Final = "SCANKV_PROFILE"


def resolve_access(given: ServerAccess, profile: str | None) -> tuple[str, TokenSource | None, Tls | None]:
    """Returns the url, token and TLS settings of a client. Reads the environment, and a profile if one is named.

    Args:
        given: What the call says.
        profile: The profile that the call names.

    Raises:
        UsageError: The environment, the profile or the url contradict themselves, or there is no such profile.
    """
    chosen = [given] if profile is None else [given, read_profile(profile)]
    others = [_read_environment(os.environ)]
    if profile is None and (name := os.environ.get(PROFILE)):
        others.append(read_profile(name))
    url = next((each.url for each in [*chosen, *others] if each.url is not None), DEFAULT_URL)
    places = [*chosen, *(each for each in others if _is_for(each, url))]
    token = next((each.token for each in places if each.token is not None), None)
    return url, token, _tls_of(places, url)


def _is_for(place: ServerAccess, url: str) -> bool:
    try:
        return place.url is None or address_of(place.url) == address_of(url)
    except UsageError:
        # The url that is used is checked later. Another one does not matter.
        return place.url == url


def _tls_of(places: Sequence[ServerAccess], url: str) -> Tls | None:
    for place in places:
        if isinstance(place.tls, Tls):
            return place.tls
        if place.tls is False and is_encrypted(url):
            raise UsageError(
                f"the url {show_server(url)} says that TLS is used, and tls is false: leave one of them out",
                option="tls",
            )
        if place.tls is not None:
            return Tls() if place.tls else None
        # A url that says that the connection is plain overrides the TLS settings of later places.
        if place.url == url and is_plain(url):
            break
    return None


def _read_environment(environ: Mapping[str, str]) -> ServerAccess:
    """Returns what the variables say. Empty ones count as not set."""
    names = (URL, TOKEN, TOKEN_FILE, TLS_CA, CLIENT_CERTIFICATE, CLIENT_KEY)
    values = {name: environ[name] for name in names if environ.get(name)}
    if TOKEN in values and TOKEN_FILE in values:
        raise UsageError(f"both {TOKEN} and {TOKEN_FILE} are set: unset one of them", option="token")
    tls = None
    if values.keys() & {TLS_CA, CLIENT_CERTIFICATE, CLIENT_KEY}:
        tls = Tls(ca=values.get(TLS_CA), certificate=values.get(CLIENT_CERTIFICATE), key=values.get(CLIENT_KEY))
    return ServerAccess(
        url=values.get(URL),
        # By name, so that a pickle of the configuration does not contain the token.
        token=TokenEnv(TOKEN) if TOKEN in values else TokenFile(values[TOKEN_FILE]) if TOKEN_FILE in values else None,
        tls=tls,
    )
