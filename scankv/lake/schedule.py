"""When a table is published: once, or every so many seconds."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn

from aio_client import (
    ConnectionFailed,
    ServerBusy,
    SnapshotLost,
    SnapshotNotTaken,
    TooManyScans,
    TooManySnapshots,
)
from scankv.lake.publisher import PublishOptions, publish
from scankv.model.errors import LakeConflict, LakeUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client import Client
    from scankv.lake.lake_table import LakeTable
    from scankv.lake.publisher import PublishReport
    from scankv.model.errors import ScanKvError

ORPHAN_SECONDS: Final = 86_400
"""How old a data file must be that no version has before it is deleted. No pass takes as long."""
_EXPIRE_SECONDS: Final = 3600
_PASSING: Final = (
    ConnectionFailed,
    LakeConflict,
    LakeUnavailable,
    ServerBusy,
    SnapshotLost,
    SnapshotNotTaken,
    TooManyScans,
    TooManySnapshots,
)
"""Failures that end by themselves, or once the disk or the network works again."""


async def publish_once(
    client: Client, table: str, lake: LakeTable, options: PublishOptions | None = None
) -> PublishReport:
    """Publishes as `publish`, then deletes the files that only versions older than `keep_seconds` need."""
    report = await publish(client, table, lake, options)
    await asyncio.to_thread(lake.expire, ORPHAN_SECONDS)
    return report


async def publish_every(
    client: Client,
    table: str,
    lake: LakeTable,
    seconds: float,
    *,
    options: PublishOptions | None = None,
    on_report: Callable[[PublishReport], None],
    on_failure: Callable[[ScanKvError], None],
) -> NoReturn:
    """Publishes until it is cancelled, and deletes the files that no version needs every hour.

    Failures that end by themselves are reported, and the next pass is at its time: the server or the location does not
    answer, or another publisher has committed.

    Args:
        client: A client of the server.
        table: The table, as `database.table`.
        lake: The published table.
        seconds: The time between the starts of two passes. A pass that takes longer is followed by the next at once.
        options: How to publish. All rows are written at most once because of `is_full`.
        on_report: Called after each pass.
        on_failure: Called with such a failure.

    Raises:
        ScanKvError: Any other failure, as for `publish`.
    """
    options = options or PublishOptions()
    due = time.monotonic()
    expires = due
    while True:
        try:
            on_report(await publish(client, table, lake, options))
            options = replace(options, is_full=False)
            if time.monotonic() >= expires:
                await asyncio.to_thread(lake.expire, ORPHAN_SECONDS)
                expires = time.monotonic() + _EXPIRE_SECONDS
        except _PASSING as error:
            on_failure(error)
        now = time.monotonic()
        due = max(due + seconds, now)
        await asyncio.sleep(due - now)
