"""Roles, and the tables for which a principal has them."""

from __future__ import annotations

import re
from enum import IntEnum
from fnmatch import translate
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

EVERY_TABLE: Final = frozenset({"*", "*.*"})
"""The patterns that match every table, and that also allow calls about the server as a whole."""

_MAX_PATTERN: Final = 300
_MAX_REMEMBERED: Final = 10_000


class Role(IntEnum):
    """What a principal may do with a table. Each role includes the ones before it."""

    READ = 1
    WRITE = 2
    ADMIN = 3

    @property
    def text(self) -> str:
        """The role as users write it."""
        return self.name.lower()


class Grants:
    """Roles by table pattern, as in `read:sales.*`. Immutable but for a cache of answers.

    A pattern is matched against `database.table` as by `fnmatch.fnmatchcase`: `*` stands for any characters, `?` for
    one, `[a-c]` for one of several.

    Args:
        texts: The grants, each as `role:pattern`.

    Raises:
        UsageError: A grant is malformed.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(texts)
        pairs = [_parse(text) for text in self.texts]
        self._patterns = [(role, _matcher(pattern)) for role, pattern in pairs]
        self._anywhere = max((role for role, _ in pairs), default=0)
        self._everywhere = max((role for role, pattern in pairs if pattern in EVERY_TABLE), default=0)
        self._remembered: dict[str, int] = {}

    def allow(self, role: Role, table: str) -> bool:
        """Whether a table may be used in a role."""
        if role <= self._everywhere:
            return True
        highest = self._remembered.get(table)
        if highest is None:
            highest = max((each for each, matches in self._patterns if matches(table)), default=0)
            if len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[table] = highest
        return role <= highest

    def allow_somewhere(self, role: Role) -> bool:
        """Whether any grant has a role."""
        return role <= self._anywhere

    def allow_everywhere(self, role: Role) -> bool:
        """Whether a grant for every table has a role."""
        return role <= self._everywhere

    def __repr__(self) -> str:
        return f"Grants({', '.join(self.texts)})"


def _parse(text: str) -> tuple[Role, str]:
    name, _, pattern = text.partition(":")
    role = next((role for role in Role if role.text == name), None)
    if role is None or not 0 < len(pattern) <= _MAX_PATTERN or not pattern.isprintable() or pattern != pattern.strip():
        raise UsageError(
            f"the grant {text[:_MAX_PATTERN]!r} is not valid: write read, write or admin, a colon, and a pattern of "
            "database.table, as in read:sales.*"
        )
    return role, pattern


@lru_cache(maxsize=1000)
def _matcher(pattern: str) -> Callable[[str], object]:
    return re.compile(translate(pattern)).match
