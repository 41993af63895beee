"""Describes what each call needs, from the permission table of the server."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from streaming_server.services.permissions import PERMISSIONS

if TYPE_CHECKING:
    from streaming_server.services.permissions import Permission


def describe_permissions() -> str:
    """Returns a table for each service: what its calls need, how answers are filtered, and what is audited."""
    parts = []
    for service, calls in groupby(PERMISSIONS.items(), lambda item: item[0].partition("/")[0]):
        parts += [f"## `{service}`\n", "| call | needs | the answer | the audit log |", "|---|---|---|---|"]
        parts += [_row(method.partition("/")[2], permission) for method, permission in calls]
        parts.append("")
    return "\n".join(parts)


def _row(call: str, permission: Permission) -> str:
    roles = [f"`{each.role.text}` for {each.scope.text}" for each in permission.requirements]
    names_owner = (
        f"`admin` for the table in `{permission.owner_table}`, or for every table without it, to name another "
        f"principal in `{permission.owner_field}`"
        if permission.owner_field
        else ""
    )
    needs = "; ".join(filter(None, [*roles, *(each.text for each in permission.owned), names_owner]))
    shown = ", ".join(f"`{visible.field}`" for visible in permission.visible)
    filtered = f"has only items of {shown} whose tables the caller may read" if shown else "is complete"
    audited = "has a line" if permission.changes else "never has a line"
    if permission.requirements and not permission.changes:
        audited = "has a line if the call is refused" + (", or names another principal" if names_owner else "")
    return f"| `{call}` | {needs or 'nothing, not even a token'} | {filtered} | {audited} |"
