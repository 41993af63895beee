"""Errors of tablets, as their tables would raise them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from scankv.model.errors import ScanKvError
from scankv.model.names import table_of, tablet_number, with_table_names

if TYPE_CHECKING:
    from collections.abc import Iterator


def of_table(error: ScanKvError, tablet: str) -> ScanKvError:
    """Returns an error that names a tablet as one that names its table."""
    if tablet_number(tablet) is None or (tablet not in error.message and tablet not in error.details.values()):
        return error
    shown = type(error)(with_table_names(error.message, [tablet]), retry_after=error.retry_after)
    shown.details.update({name: with_table_names(value, [tablet]) for name, value in error.details.items()})
    return shown


@contextmanager
def naming_tables() -> Iterator[None]:
    """Raises the errors of the block that are about a tablet as errors about its table."""
    try:
        yield
    except ScanKvError as error:
        tablet = error.details.get("table", "")
        if tablet == table_of(tablet):
            raise
        raise of_table(error, tablet) from error
