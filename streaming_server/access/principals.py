"""Principals: names that also say which source vouches for them, so that no source can hand out the names of another.

A principal of the token file is the name there. One of a JSON web token has a prefix, as in `jwt:ann`, and the server's
own gateway is `server:gateway`. This text is compared, stored as an owner, and shown everywhere.
"""

from __future__ import annotations

from typing import Final

ISSUED: Final = "jwt:"
"""What the principals of JSON web tokens begin with."""

OF_SERVER: Final = "server:"
"""What the principals of the server's own processes begin with."""

_IN_FILE: Final = "token:"
# Names in the token file that could be taken for principals of another kind get a prefix, too.
_RESERVED: Final = (ISSUED, OF_SERVER, _IN_FILE)


def principal_in_file(name: str) -> str:
    """Returns the principal of a name in the token file."""
    return f"{_IN_FILE}{name}" if name.startswith(_RESERVED) else name


def issued_principal(name: str, *, shares_names: bool) -> str:
    """Returns the principal of a name in a JSON web token.

    Args:
        name: The name.
        shares_names: Whether it is the principal of this name in the token file.
    """
    return principal_in_file(name) if shares_names else f"{ISSUED}{name}"


def reserved_prefix(name: str) -> str:
    """Returns the prefix that a new name in the token file must not have. Empty: it has none."""
    return next((prefix for prefix in _RESERVED if name.startswith(prefix)), "")
