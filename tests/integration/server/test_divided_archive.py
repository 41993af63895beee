"""The archive of a server whose number of workers changes: it continues, and every instant can be restored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.support.archived import check_every_instant
from tests.support.workers import names_of_workers

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import sync

pytestmark = pytest.mark.timeout(240)

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
NAMES = [name for (name,) in names_of_workers(2, "kept")]


def create(client: sync.Client, name: str) -> sync.Table:
    return client.create_table(name, SCHEMA, primary_key=["k"], buckets=2)


@pytest.mark.breadth
def test_every_instant_can_be_restored_while_the_number_of_workers_changes(tmp_path: Path) -> None:
    check_every_instant(tmp_path, NAMES, [1, 2, 3, 2], create, lambda run: [run])
