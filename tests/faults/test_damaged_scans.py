"""A scan over a damaged block never skips a row silently: in both directions, with any bounds, live or pinned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import pytest_asyncio

from aio_client import Client, DataLoss, connect
from scankv.model.keys.key_codec import KeyCodec
from scankv.model.keys.key_range import KeyRange
from tests.support.offline import bucket_path
from tests.support.prepared import flip, keys_in, prepared_table, rows_file, value_of
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from aio_client import Scan

pytestmark = pytest.mark.asyncio

ROWS = 8000
DAMAGED_BUCKET = 1
PLACES = {"first": 0, "middle": ROWS // 4, "last": -1}
FAR = 1500
"""Far more keys than fit into a block."""


@dataclass(frozen=True)
class DamagedKey:
    """A table and its keys by bucket. The block with `key` in bucket 1 is damaged."""

    name: str
    keys: tuple[list[int], list[int]]
    key: int


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, DamagedKey]]:
    data = tmp_path_factory.mktemp("damaged_scans") / "data"
    tables = {}
    for place, index in PLACES.items():
        name = f"test.{place}"
        prepared_table(data, name, ROWS)
        keys = (keys_in(data, name, 0), keys_in(data, name, DAMAGED_BUCKET))
        key = keys[DAMAGED_BUCKET][index]
        file = rows_file(bucket_path(data, name, DAMAGED_BUCKET))
        flip(file, file.read_bytes().find(value_of(key).encode()) + 3)
        tables[place] = DamagedKey(name, keys, key)
    return data, tables


@pytest.fixture(scope="module")
def harmed_server(damaged: tuple[Path, dict[str, DamagedKey]]) -> Iterator[ServerProcess]:
    with ServerProcess(damaged[0]) as server:
        yield server


@pytest_asyncio.fixture
async def client(harmed_server: ServerProcess) -> AsyncIterator[Client]:
    async with connect(harmed_server.url) as client:
        yield client


def encoded(key: int) -> bytes:
    return KeyCodec([pa.int64()]).encode_one([key])


def with_range(client: Client, scan: Scan, keys: range) -> Scan:
    return client.scan(replace(scan.spec, key_range=KeyRange(encoded(keys.start), encoded(keys.stop))))


def bounds_around(key: int) -> dict[str, range]:
    """Returns key ranges that contain a key."""
    prefix = key // 256 * 256
    return {
        "none": range(ROWS),
        "prefix": range(prefix, prefix + 256),
        "range": range(key - 100, key + 100),
        "up to it": range(key + 1),
        "from it": range(key, ROWS),
    }


async def outcome(scan: Scan) -> tuple[list[int], DataLoss | None]:
    """Returns the keys of the received rows, and the error that ended the scan."""
    keys: list[int] = []
    try:
        async for rows in scan.stream():
            keys += rows.column("k").to_pylist()
            assert rows.column("v").to_pylist() == [value_of(key) for key in rows.column("k").to_pylist()]
    except DataLoss as error:
        return keys, error
    return keys, None


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("pinned", [False, True], ids=["live", "pinned"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.represented_by("forward-live-first", "reverse-pinned-last")
async def test_a_scan_that_meets_damage_is_data_loss_and_other_scans_are_complete(
    client: Client, damaged: tuple[Path, dict[str, DamagedKey]], place: str, pinned: bool, reverse: bool
) -> None:
    there = damaged[1][place]
    table = await client.table(there.name)
    scan = table.scan().with_chunk(rows=300)
    scan = scan.as_of(await table.snapshot()) if pinned else scan
    scan = scan.reverse() if reverse else scan
    lost = 0
    for bounds, within in bounds_around(there.key).items():
        expected = [key for keys in there.keys for key in (keys[::-1] if reverse else keys) if key in within]
        limits = (None, 2 * ROWS, len(expected), expected.index(there.key) + 1)
        for limit in limits:
            limited = scan.limit(limit) if bounds == "none" else with_range(client, scan, within).limit(limit)
            rows, error = await outcome(limited)
            assert error is not None, f"bounds {bounds}, limit {limit}: {len(rows)} rows in success"
            assert error.details["bucket"] == str(DAMAGED_BUCKET)
            assert rows == expected[: len(rows)]
            assert there.key not in rows
            lost += 1
    assert lost == 20


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("pinned", [False, True], ids=["live", "pinned"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
async def test_scans_whose_bounds_avoid_the_damage_are_complete(
    client: Client, damaged: tuple[Path, dict[str, DamagedKey]], place: str, pinned: bool, reverse: bool
) -> None:
    there = damaged[1][place]
    table = await client.table(there.name)
    scan = table.scan().with_chunk(rows=300)
    scan = scan.as_of(await table.snapshot()) if pinned else scan
    scan = scan.reverse() if reverse else scan
    before, behind = range(there.key - FAR), range(there.key + FAR, ROWS)
    for within in (before, behind):
        expected = [key for keys in there.keys for key in (keys[::-1] if reverse else keys) if key in within]
        if expected:
            assert await outcome(with_range(client, scan, within)) == (expected, None)
    whole = there.keys[0][::-1] if reverse else there.keys[0]
    assert await outcome(scan.limit(len(whole))) == (whole, None)
    assert await outcome(scan.with_buckets(0)) == (whole, None)
