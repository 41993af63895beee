"""How results look in notebooks: their fields as a small table."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


class ShownFields:
    """A base of dataclasses that notebooks show as a table of their fields."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        # Few programs run in notebooks, so others do not import this.
        from aio_client._input.notebooks import html_table

        shown: Any = self
        rows = ((field.name, getattr(self, field.name)) for field in fields(shown))
        return html_table(type(self).__name__, ("field", "value"), rows)
