"""The defaults of the columns of a table, for commands that read rows or show the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scankv.formats.table_sheets import default_texts as texts_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from aio_client.sync import Table


def defaults_of(table: Table) -> Mapping[str, pa.Scalar]:
    """Returns what complete rows get in columns that they do not have.

    `Table.column_defaults` has Python values where Python has them, and so no types.
    """
    return table._aio._handle.shape.defaults


def default_texts(table: Table) -> dict[str, str]:
    """Returns the defaults as text, in the form that commands accept."""
    return texts_of(defaults_of(table))
