"""Hints for names that an object does not have, because they are misspelt or belong to another library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scankv.model.errors import did_you_mean

_WORDS: Final = {
    "execute": ("sql",),
    "filter": ("where",),
    "find": ("scan", "lookup"),
    "insert": ("upsert", "append"),
    "merge": ("upsert",),
    "offset": ("resume_from", "key_range"),
    "order_by": ("ordered", "top_n"),
    "put": ("upsert",),
    "query": ("sql", "scan"),
    "remove": ("delete",),
    "sort": ("ordered", "top_n"),
    "update": ("upsert",),
}
"""What other libraries call methods of ScanKV, and the methods. An object has some of them."""


class NearMisses:
    """A base class whose AttributeErrors name the methods that the caller may mean."""

    __slots__ = ()

    if not TYPE_CHECKING:  # so that type checkers still miss the attribute

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # only if a property raised, which raises again
            try:
                return object.__getattribute__(self, name)
            except AttributeError as error:
                if name.startswith("_") or hasattr(type(self), name):
                    raise
                # With a name and no object, Python adds no hint of its own.
                raise AttributeError(f"{error}{hint_for(name, type(self))}", name=name) from None


def hint_for(name: str, kind: type) -> str:
    """Returns a hint, to be appended to a message, which names the public attributes of a class that are meant."""
    known = [each for each in dir(kind) if not each.startswith("_")]
    same = [each for each in _WORDS.get(name, ()) if each in known]
    return "; did you mean " + " or ".join(f'"{each}"' for each in same) + "?" if same else did_you_mean(name, known)
