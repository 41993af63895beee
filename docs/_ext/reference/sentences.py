"""The beginning of a description, for a summary."""

from __future__ import annotations

import re

END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`$])")


def first_sentence(text: str) -> str:
    """Returns the first sentence of the first paragraph, on one line."""
    return END.split(" ".join(text.strip().partition("\n\n")[0].split()))[0]
