"""After a kill at any moment of a bootstrap, its table has all rows or does not exist, and nothing else is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from aio_client import BootstrapLost, ConnectionFailed, connect
from tests.faults.test_transaction_crash import deaths_of

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import BootstrapProgress
    from tests.support.server_process import ServerProcess


@pytest.mark.timeout(300)  # up to 60 kills, each with a start
@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_a_table_has_all_rows_or_does_not_exist_wherever_the_server_dies(tmp_path: Path, stride: int) -> None:
    # Staged runs, several files for each of two buckets, their ingestion, and the rename are steps.
    assert deaths_of("dying_bootstrap", tmp_path, str(stride)) > 40 // stride


@pytest.mark.asyncio
@pytest.mark.parametrize("sent", [100_000, 300_000, 500_000])
async def test_a_client_learns_that_the_server_was_killed_and_bootstraps_again(
    server: ServerProcess, sent: int
) -> None:
    # Several requests.
    rows = pa.table({"k": pa.array(range(500_000))})

    kills: list[BootstrapProgress] = []

    def kill(progress: BootstrapProgress) -> None:
        if progress.rows >= sent and not kills:
            kills.append(progress)
            server.kill()
            server.restart()

    async with connect(server.url, operation_timeout=30) as client:
        with pytest.raises((BootstrapLost, ConnectionFailed)):
            await client.bootstrap("test.t", rows, primary_key=["k"], on_progress=kill)
        assert await client.tables() == []
        table = await client.bootstrap("test.t", rows, primary_key=["k"])
        assert await table.count() == 500_000
