"""The token of a transaction that several worker processes know: the tokens that each of them has given it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_BETWEEN: Final = "."


def join_tokens(tokens: Sequence[str]) -> str:
    """Returns the token that clients get."""
    return _BETWEEN.join(tokens)


def split_token(token: str) -> list[str]:
    """Returns the token of each worker. A token that is not of `join_tokens` is returned alone."""
    return token.split(_BETWEEN)
