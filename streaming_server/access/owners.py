"""Owners: what a call makes and leaves behind belongs to its principal, and only it or an admin may change it.

Snapshots, consumers, writers, transactions and column locks store the name of the principal that made them. Those
without one were made by a server without tokens, or by one that did not know owners: everyone with the role for their
tables may change them.

Each kind checks its owner where it finds what a call names, under the lock under which it changes it. So nothing can
change hands between the check and the change.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from scankv.model.errors import PermissionDenied
from scankv.model.names import table_of
from streaming_server.access.callers import ANYBODY
from streaming_server.access.grants import Role

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streaming_server.access.callers import CallerIdentity

CALLER: Final[ContextVar[CallerIdentity]] = ContextVar("scankv_caller", default=ANYBODY)
"""Who makes the call that the current task serves. The server itself, and all where no tokens are asked for, are
`ANYBODY`, who may do everything and owns nothing."""


def current_principal() -> str:
    """Returns who owns what the current call makes. Empty: nobody does."""
    return CALLER.get().principal


def is_admin_of(tables: Iterable[str]) -> bool:
    """Whether the caller is an admin of all of some tables; if there are none, of every table."""
    grants, names = CALLER.get().grants, set(map(table_of, tables))
    if not names:
        return grants.allow_everywhere(Role.ADMIN)
    return all(grants.allow(Role.ADMIN, name) for name in names)


def is_owner(owner: str, tables: Iterable[str]) -> bool:
    """Whether the caller may change what belongs to an owner. Arguments as for `check_owner`."""
    return owner in ("", current_principal()) or is_admin_of(tables)


def check_owner(owner: str, what: str, tables: Iterable[str]) -> None:
    """Checks that the caller may change something.

    Args:
        owner: The principal that it belongs to. Empty: it has no owner.
        what: What it is, with its name, for the error.
        tables: The tables that it is about. Whoever calls this has checked that the caller may read them.

    Raises:
        PermissionDenied: It belongs to another principal, and the caller is no admin of its tables.
    """
    if not is_owner(owner, tables):
        raise PermissionDenied(
            f'{what} belongs to the principal "{owner}", and the token is of "{current_principal()}": only its owner, '
            "or a token with the role admin for its tables, can do this; use tokens of one principal for programs that "
            "take over from each other, or ask an admin to assign it",
            role=Role.ADMIN.text,
            principal=owner,
        )
