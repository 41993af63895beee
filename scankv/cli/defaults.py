"""The defaults of the columns of a table, for commands that read rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from aio_client.sync import Table


def defaults_of(table: Table) -> Mapping[str, pa.Scalar]:
    """Returns what complete rows get in columns that they do not have.

    `Table.column_defaults` has Python values, which cannot hold every time.
    """
    return table._aio._handle.shape.defaults
