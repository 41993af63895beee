"""Owners: what a call makes and leaves behind belongs to its principal, and only it or an admin may change it.

Snapshots, consumers, writers, transactions and column locks store the name of the principal that made them. Those
without one were made by a server without tokens, or by one that did not know owners: everyone with the role for their
tables may change them.

Each kind checks its owner where it finds what a call names, under the lock under which it changes it. So nothing can
change hands between the check and the change.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scankv.model.errors import PermissionDenied
from scankv.model.names import check_principal, table_of
from streaming_server.access.callers import ANYBODY
from streaming_server.access.grants import Role

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streaming_server.access.callers import CallerIdentity

CALLER: Final[ContextVar[CallerIdentity | None]] = ContextVar("scankv_caller", default=ANYBODY)
"""Who makes the call that the current task serves. The server itself, and all where no tokens are asked for, are
`ANYBODY`, who may do everything and owns nothing. None: a call whose caller is not known yet, which may do nothing."""

NAMED_OWNER: Final[ContextVar[str]] = ContextVar("scankv_named_owner", default="")
"""Whom an admin names as the owner of what the current call makes. Empty: its caller will own it."""


def _current_caller() -> CallerIdentity:
    caller = CALLER.get()
    if caller is None:
        raise RuntimeError("a call has come to something that has an owner before its caller was known")
    return caller


def current_principal() -> str:
    """Returns the principal that makes the current call. Empty: it has none."""
    return _current_caller().principal


def new_owner() -> str:
    """Returns the principal that will own what the current call makes. Empty: it gets no owner."""
    return NAMED_OWNER.get() or current_principal()


def check_named_owner(named: str, tables: Iterable[str]) -> str:
    """Returns the principal that a call names as the owner of what it makes, after checking the right to name it.

    Without this right, a caller could use up the share of another principal. On a server without tokens, every caller
    has it. Empty: the call names no one, or a caller that is not an admin names itself, which proves nothing.

    Args:
        named: The principal. Empty: that of the caller.
        tables: The tables that it will be about, as for `OwnerCheck`.

    Raises:
        InvalidRequest: The name is not allowed.
        PermissionDenied: It is another principal than that of the caller, who is no admin of the tables.
    """
    if not named:
        return ""
    is_admin, principal = owner_check("what the call makes", tables).is_admin, current_principal()
    if named == principal:
        return named if is_admin else ""
    check_principal(named)
    if not is_admin:
        raise PermissionDenied(
            f'the call names the principal "{named}" as the owner of what it makes, and the token is of '
            f'"{principal}": only a token with the role admin for its tables can name another principal; '
            "leave it out, or ask an admin to assign it",
            role=Role.ADMIN.text,
            principal=named,
        )
    return named


def continuing_principal(table: str) -> str:
    """Returns who becomes the owner when the holder of something without an owner continues it. Empty: nobody.

    An admin of the table may have got its fence or epoch from a take-over, so it does not become the owner.
    """
    caller = _current_caller()
    return "" if caller.grants.allow(Role.ADMIN, table_of(table)) else caller.principal


@dataclass(frozen=True, slots=True)
class OwnerCheck:
    """The check of the owner of something, for a caller who is known. May be called in any thread.

    Attributes:
        caller: Who makes the call.
        what: What it is, with its name, for the error.
        tables: The tables that it is about, for which the caller has a role. Empty: it is about none yet, and only who
            is an admin of every table is one of it.
    """

    caller: CallerIdentity
    what: str
    tables: frozenset[str]

    @property
    def is_admin(self) -> bool:
        """Whether the caller is an admin of all of the tables."""
        grants = self.caller.grants
        if not self.tables:
            return grants.allow_everywhere(Role.ADMIN)
        return all(grants.allow(Role.ADMIN, table) for table in self.tables)

    def allows(self, owner: str) -> bool:
        """Whether the caller may change what an owner has. Empty: it has no owner."""
        return owner in ("", self.caller.principal) or self.is_admin

    def __call__(self, owner: str) -> None:
        """Raises PermissionDenied unless the caller may change what an owner has. Empty: it has no owner."""
        if not self.allows(owner):
            raise PermissionDenied(
                f'{self.what} belongs to the principal "{owner}", and the caller is "{self.caller.principal}": only '
                "its owner, or a token with the role admin for its tables, can do this; use tokens of one principal "
                "for programs that take over from each other, or ask an admin to assign it",
                role=Role.ADMIN.text,
                principal=owner,
            )


def owner_check(what: str, tables: Iterable[str]) -> OwnerCheck:
    """Returns the check for the caller of the current call. Arguments as for `OwnerCheck`."""
    return OwnerCheck(_current_caller(), what, frozenset(map(table_of, tables)))


_RESERVED: Final = 20
"""Only admins get the last of this many places, so that they can do something about the others."""


def own_share(most: int, share: float) -> int:
    """Returns how many of something one principal may have. Arguments as for `share_refusal`."""
    return max(1, int(most * share))


def share_for(principal: str, most: int, share: float) -> int:
    """Returns up to how many of something, of which the whole server has a number, the current call gives a principal.

    A principal uses its whole share itself. Others, who are admins of some tables only, leave it half of that.
    """
    own = own_share(most, share)
    return own if principal == current_principal() else own // 2


def admin_reserve(most: int) -> int:
    """Returns how many of something only admins get, of the most that may be there."""
    return most // _RESERVED


def share_refusal(
    things: str, mine: int, taken: int, most: int, share: float, tables: Iterable[str] = (), *, remedy: str = "end some"
) -> str | None:
    """Returns why the current call may not make another one of something, although the server has place. None: it may.

    Admins may. So may all callers of a server without tokens, which does not know one from another.

    Args:
        things: What it would make, in the plural.
        mine: How many of them belong to the principal that would own it.
        taken: How many of them are there.
        most: The most that may be there.
        share: The share of them that one principal may have (`max_caller_share`).
        tables: The tables that have this number of them. Empty: the whole server has, so only who is an admin of every
            table is an admin.
        remedy: What the principal can do.
    """
    principal = new_owner()
    if not principal or owner_check(things, tables).is_admin:
        return None
    if mine >= share_for(principal, most, share):
        return _share_text(principal, mine, things, most, share, remedy)
    if taken >= most - admin_reserve(most):
        return (
            f"there are {taken:,} {things}; the limit is {most:,}, of which the last {admin_reserve(most):,} are for "
            f"admins: {remedy}, or ask an admin"
        )
    return None


def assignment_refusal(things: str, principal: str, mine: int, given: int, most: int, share: float) -> str | None:
    """Returns why the current call may not give a principal more of something that the whole server counts.

    Args:
        things: What it would give, in the plural.
        principal: To whom.
        mine: How many of them belong to it now.
        given: How many more would.
        most: The most that may be there.
        share: The share of them that one principal may have (`max_caller_share`).
    """
    if not given or owner_check(things, ()).is_admin or mine + given <= share_for(principal, most, share):
        return None
    return _share_text(principal, mine, f"{things}, and would get {given:,} more", most, share, "end some")


def _share_text(principal: str, mine: int, things: str, most: int, share: float, remedy: str) -> str:
    own, given = own_share(most, share), share_for(principal, most, share)
    half = f", and who names or assigns it without being an admin of every table gives it {given:,}"
    return (
        f'the principal "{principal}" has {mine:,} {things}; the limit of each principal is {own:,} of {most:,}'
        f"{half if given < own else ''}: {remedy}, or raise max_caller_share"
    )
