"""Writes JSON that all readers of published tables understand: UTF-8, with escapes only where JSON needs them."""

from __future__ import annotations

import json
import re
from typing import Final

_SURROGATES: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}")
_LARGEST_OF_PLANE_0: Final = 0xFFFF


def utf8_json(value: object, *, indent: int | None = None) -> str:
    r"""Returns a value as JSON.

    By default, Python writes a character beyond plane 0 as two escapes, such as `\ud842\udfb7`. The JSON reader of
    Arrow for Rust, which deltalake uses, joins such escapes with an `or` instead of a sum, so it reads a character of
    plane 2, 4, 6 and so on, up to 16, as one of the plane before.
    """
    return json.dumps(value, ensure_ascii=False, indent=indent)


def has_escaped_surrogates(text: str) -> bool:
    """Returns whether a JSON text has such escapes."""
    return _SURROGATES.search(text) is not None


def is_beyond_plane_0(text: str | None) -> bool:
    """Returns whether a text has a character that such escapes stand for."""
    return max(map(ord, text or ""), default=0) > _LARGEST_OF_PLANE_0


def is_misread_if_escaped(text: str | None) -> bool:
    """Returns whether deltalake takes a text with such escapes for another text."""
    planes = {ord(character) >> 16 for character in text or ""}
    return any(plane > 0 and plane % 2 == 0 for plane in planes)
