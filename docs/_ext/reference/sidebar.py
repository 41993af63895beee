"""The pages below a page of the reference, for the sidebar."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def list_in_sidebar(pages: Iterable[str]) -> str:
    """Returns what puts pages into the sidebar below the page that contains it; each page is `title <file>`."""
    lines = "\n".join(pages)
    return f"```{{toctree}}\n:hidden:\n\n{lines}\n```\n" if lines else ""
