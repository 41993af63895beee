"""The defaults of the columns of a table, for commands that read rows or show the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.formats.text import to_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aio_client.sync import Table


def defaults_of(table: Table) -> Mapping[str, pa.Scalar]:
    """Returns what complete rows get in columns that they do not have.

    `Table.column_defaults` has Python values where Python has them, and so no types.
    """
    return table._aio._handle.shape.defaults


def default_texts(table: Table) -> dict[str, str]:
    """Returns the defaults as text, in the form that commands accept."""
    return {name: to_text(pa.array([default], default.type))[0].as_py() for name, default in defaults_of(table).items()}
